"""Arrays on the host, and the ways between them and tensors. torch is imported where a tensor is asked for.

NumPy has no bfloat16. The package ``ml_dtypes``, which ``onnx`` brings, adds it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Array = npt.NDArray[Any]
Values: TypeAlias = Union[Array, "Tensor"]
"""Numbers in memory. Those of a device other than the CPU are tensors."""
DType = np.dtype[Any]
Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

FLOAT32, FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
INT16, BYTE = np.dtype(np.int16), np.dtype(np.uint8)
ALIGNMENT = 64  # bytes: of the widest vectors, and of a line of the caches
BFLOAT16 = "bfloat16"  # the name of its dtype


def bfloat16() -> DType:
    """Returns the dtype of brain floats, which NumPy itself does not have."""
    import ml_dtypes  # only here: most models have no such values

    found: DType = np.dtype(ml_dtypes.bfloat16)
    return found


def dtype_named(name: str) -> DType:
    """Returns the dtype of a name, as ``dtype.name`` gives it.

    Raises:
        TypeError: there is no such dtype.
    """
    found: DType = np.dtype(name) if name != BFLOAT16 else bfloat16()
    return found


def is_floating(dtype: DType) -> bool:
    """Returns whether values of a dtype are floating-point numbers, brain floats included."""
    return dtype.kind == "f" or dtype.name == BFLOAT16


def dtype_of(tensor: Tensor) -> DType:
    """Returns the dtype that a tensor's values have as an array."""
    return dtype_named(str(tensor.dtype).removeprefix("torch."))


def torch_dtype(dtype: DType) -> torch.dtype:
    """Returns the dtype that an array's values have as a tensor."""
    import torch

    found: torch.dtype = getattr(torch, dtype.name)
    return found


def empty_array(shape: tuple[int, ...], dtype: DType) -> Array:
    """Makes an array whose values are still to be written. It begins where vectors and lines of the caches do."""
    nbytes = math.prod(shape) * dtype.itemsize
    block = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + nbytes].view(dtype).reshape(shape)


def as_array(values: Values) -> Array:
    """Returns values of the host as an array with the same strides, without a copy."""
    if isinstance(values, np.ndarray):
        return values
    if values.itemsize == INT16.itemsize and dtype_of(values).name == BFLOAT16:
        array: Array = values.detach().view(torch_dtype(INT16)).numpy().view(bfloat16())
        return array
    return values.detach().numpy()


def to_host(values: Values) -> Array:
    """Returns values of any device as an array, without a copy if they are on the host.

    Floating numbers of 16 bits become float32, in which all that decodes them computes.
    """
    if not isinstance(values, np.ndarray):
        values = as_array(values.cpu())
    narrow = values.itemsize < FLOAT32.itemsize and is_floating(values.dtype)
    return values.astype(np.float32) if narrow else values


def as_tensor(values: Values) -> Tensor:
    """Returns values as a tensor with the same strides, without a copy. That of a read-only array is only read."""
    if not isinstance(values, np.ndarray):
        return values
    import torch

    values = unlocked(values)
    if values.dtype.name == BFLOAT16:
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def unlocked(array: Array) -> Array:
    """Returns an array over the same memory that says that it is writable, for what only reads it.

    torch warns of read-only arrays, and OpenVINO shares no memory of them.
    """
    return array if array.flags.writeable else np.asarray(_Unlocked(array)).view(array.dtype)


class _Unlocked:
    """A read-only array as NumPy sees a foreign one. Its dtype may be lost, because NumPy knows no brain floats."""

    def __init__(self, array: Array) -> None:
        self._array = array  # keeps the memory
        place, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (place, False), "strides": array.strides}


def copy_into(target: Values, source: Values) -> None:
    """Writes values into memory of the same shape. Between two devices, the current stream does so later."""
    if isinstance(target, np.ndarray) and isinstance(source, np.ndarray):
        np.copyto(target, source)
    else:
        as_tensor(target).copy_(as_tensor(source), non_blocking=True)
