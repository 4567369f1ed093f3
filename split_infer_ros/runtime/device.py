"""What the package knows of a device without importing torch."""

from __future__ import annotations

from typing import Protocol


class Device(Protocol):
    """A CPU or a GPU, such as a ``torch.device``. Its text is ``cpu`` or, for example, ``cuda:0``."""

    @property
    def type(self) -> str:
        """``cpu`` or ``cuda``."""

    @property
    def index(self) -> int:
        """Which GPU; without meaning on a CPU."""
