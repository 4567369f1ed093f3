"""Arrays on the host, and their conversion to and from tensors. Only functions that handle tensors import torch.

NumPy has no bfloat16. The package ``ml_dtypes``, a dependency of ``onnx``, adds it.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Array = npt.NDArray[Any]
Values: TypeAlias = Union[Array, "Tensor"]
"""An array or a tensor. Values on a device other than the CPU are tensors."""
DType = np.dtype[Any]
Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

FLOAT32, FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
INT16, BYTE = np.dtype(np.int16), np.dtype(np.uint8)
ALIGNMENT = 64  # bytes: the size of the widest vectors, and of a cache line
BFLOAT16 = "bfloat16"  # the name of the dtype of brain floats


def bfloat16() -> DType:
    """Returns the dtype of brain floats (bfloat16), which NumPy itself does not have."""
    import ml_dtypes  # only here, because most models have no brain floats

    found: DType = np.dtype(ml_dtypes.bfloat16)
    return found


def dtype_named(name: str) -> DType:
    """Returns the dtype with a name. Names are those of ``dtype.name``, for example ``float32`` or ``bfloat16``.

    Raises:
        TypeError: there is no such dtype.
    """
    found: DType = np.dtype(name) if name != BFLOAT16 else bfloat16()
    return found


def is_bfloat16(dtype: DType) -> bool:
    """Returns whether values of a dtype are brain floats."""
    return dtype.kind == "V" and dtype.name == BFLOAT16  # NumPy needs some microseconds to make a name


def is_floating(dtype: DType) -> bool:
    """Returns whether values of a dtype are floating-point numbers, brain floats included."""
    return dtype.kind == "f" or is_bfloat16(dtype)


def dtype_of(tensor: Tensor) -> DType:
    """Returns the NumPy dtype of a tensor's values."""
    return _numpy_dtype(tensor.dtype)


@cache
def _numpy_dtype(dtype: torch.dtype) -> DType:
    return dtype_named(str(dtype).removeprefix("torch."))


def torch_dtype(dtype: DType) -> torch.dtype:
    """Returns torch's dtype for a NumPy dtype."""
    import torch

    found: torch.dtype = getattr(torch, dtype.name)
    return found


def empty_array(shape: tuple[int, ...], dtype: DType) -> Array:
    """Returns a new array with undefined values. Its address is a multiple of ``ALIGNMENT`` bytes."""
    nbytes = math.prod(shape) * dtype.itemsize
    block = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + nbytes].view(dtype).reshape(shape)


def as_array(values: Values) -> Array:
    """Returns values of the host as an array with the same strides, without a copy."""
    if isinstance(values, np.ndarray):
        return values
    if values.itemsize == INT16.itemsize and is_bfloat16(dtype_of(values)):
        array: Array = values.detach().view(torch_dtype(INT16)).numpy().view(bfloat16())
        return array
    return values.detach().numpy()


def to_host(values: Values) -> Array:
    """Returns values of any device as an array, without a copy if they are on the host.

    Floating-point numbers of 16 bits become float32, because all decoders compute in float32.
    """
    if not isinstance(values, np.ndarray):
        values = as_array(values.cpu())
    narrow = values.itemsize < FLOAT32.itemsize and is_floating(values.dtype)
    return values.astype(np.float32) if narrow else values


def as_tensor(values: Values) -> Tensor:
    """Returns values as a tensor with the same strides, without a copy.

    If the values are a read-only array, never write to the tensor: torch does not prevent it.
    """
    if not isinstance(values, np.ndarray):
        return values
    import torch

    values = unlocked(values)
    if is_bfloat16(values.dtype):
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def unlocked(array: Array) -> Array:
    """Returns an array over the same memory that claims to be writable. Give it only to code that reads it.

    torch warns about read-only arrays, and OpenVINO does not share their memory.
    """
    return array if array.flags.writeable else np.asarray(_Unlocked(array)).view(array.dtype)


class _Unlocked:
    """Presents a read-only array to NumPy as writable memory of another library.

    The dtype may be lost, because NumPy does not know brain floats.
    """

    def __init__(self, array: Array) -> None:
        self._array = array  # keeps the memory
        place, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (place, False), "strides": array.strides}


def copy_into(target: Values, source: Values) -> None:
    """Writes values into memory of the same shape.

    To or from a device other than the CPU, the current stream makes the copy. It may end after this function returns.
    """
    if isinstance(target, np.ndarray) and isinstance(source, np.ndarray):
        np.copyto(target, source)
    else:
        as_tensor(target).copy_(as_tensor(source), non_blocking=True)
