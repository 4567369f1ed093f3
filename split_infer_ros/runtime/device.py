"""The name of a device, which needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Device(str):
    """A CPU or a GPU by its name: ``cpu``, or ``cuda:0`` for the first GPU.

    torch takes such a name wherever it takes a ``torch.device``. What takes a ``Device`` takes a ``torch.device`` as
    well, as long as it reads ``type``, ``index`` and the text.
    """

    __slots__ = ()

    @classmethod
    def of(cls, tensor: Tensor) -> Device:
        """Returns the device of a tensor."""
        return cls(str(tensor.device))

    @property
    def type(self) -> str:
        """``cpu`` or ``cuda``."""
        return self.partition(":")[0]

    @property
    def index(self) -> int:  # type: ignore[override]  # text has a method of that name
        """Which GPU; 0 on a CPU."""
        return int(self.partition(":")[2] or 0)


CPU = Device("cpu")
