"""The name of a device. Processes without torch can use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Device(str):
    """A CPU or a GPU by its name: ``cpu``, or ``cuda:0`` for the first GPU.

    torch accepts such a name wherever it accepts a ``torch.device``. Code that reads only ``type``, ``index`` and the
    text of a ``Device`` works with a ``torch.device``, too.
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
        """The number of the GPU; 0 for a CPU."""
        return int(self.partition(":")[2] or 0)


CPU = Device("cpu")
