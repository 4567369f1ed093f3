"""Types of arrays on the host, and the ways between them and tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def to_host(values: Tensor | npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the values as a NumPy array, without a copy if they are on the host.

    Floating numbers of 16 bits become float32, because NumPy has no bfloat16.
    """
    if isinstance(values, np.ndarray):
        return values
    if values.is_floating_point() and values.itemsize < 4:
        values = values.float()
    array: npt.NDArray[Any] = values.numpy(force=True)
    return array


def to_torch(array: npt.NDArray[Any]) -> Tensor:
    """Returns a tensor that views the array, which may be read-only. Nobody may write to the tensor then."""
    import torch  # only here: who needs tensors has it

    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Unlocked(array)))


class _Unlocked:
    """A read-only array that says that it is writable. torch has no tensors that are read-only, and warns of them."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array  # keeps the memory
        place, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (place, False)}
