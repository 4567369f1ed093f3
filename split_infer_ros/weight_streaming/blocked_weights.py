"""oneDNN's own layouts of convolution weights, over memory that we choose.

A convolution whose weights lie as oneDNN wants them reads them as they are; plain ones are converted anew at each call,
which takes a tenth more and as much memory again. torch makes such a tensor in memory of its own only; over ours it is
made by the C interface through which torch's compiled models bring their constants.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Geometry = tuple[list[int], list[int], list[int], int]  # padding, stride, dilation, groups


@dataclass(frozen=True, slots=True)
class BlockedLayout:
    """How one convolution's weights lie; only ever made in this process, for what it says is trusted.

    Attributes:
        shape: of the weights, (C', C / groups, kh, kw).
        nbytes: they take, with the padding of channels.
        digest: tells this layout from others.
    """

    shape: tuple[int, ...]
    nbytes: int
    digest: str
    _descriptor: bytes

    def view(self, address: int) -> Tensor:
        """float32 weights that lie at that address, which must stay mapped for as long as they are used."""
        sizes = (ctypes.c_int64 * len(self.shape))(*self.shape)
        strides = (ctypes.c_int64 * len(self.shape))(*torch.empty(self.shape, device="meta").stride())
        handle = ctypes.c_void_p()
        library = _library()
        failed = library.aoti_torch_create_tensor_from_blob_v2(
            *(ctypes.c_void_p(address), ctypes.c_int64(len(self.shape)), sizes, strides, ctypes.c_int64(0)),
            *(library.aoti_torch_dtype_float32(), library.aoti_torch_device_type_cpu(), 0, ctypes.byref(handle)),
            *(library.aoti_torch_layout__mkldnn(), self._descriptor, ctypes.c_int64(len(self._descriptor))),
        )
        if failed:
            raise RuntimeError(f"torch made no tensor of shape {self.shape} over memory that it does not own.")
        new_capsule = ctypes.pythonapi.PyCapsule_New
        new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
        tensor: Tensor = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(new_capsule(handle, None, None))
        return tensor


@functools.cache
def is_supported() -> bool:
    """True if this torch has oneDNN and lets blocked tensors lie over memory of ours."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        weights = torch.arange(256.0).reshape(16, 16, 1, 1)
        blocked = pack(weights, ([0, 0], [1, 1], [1, 1], 1), (1, 16, 8, 8))
        other = form(blocked).view(torch.ops.mkldnn.data_ptr(blocked))
        return bool(torch.equal(other.to_dense(), weights))
    except (AttributeError, RuntimeError):
        return False


def pack(weights: Tensor, geometry: Geometry, input_shape: Sequence[int]) -> Tensor:
    """The weights, opaque, as they lie best for inputs of that shape and this thread's number of threads."""
    blocked: Tensor = torch.ops.mkldnn._reorder_convolution_weight(weights, *geometry, list(input_shape))
    return blocked


def form(blocked: Tensor) -> BlockedLayout:
    """The form of an opaque tensor."""
    descriptor = bytes(torch.ops.mkldnn._get_mkldnn_serialized_md(blocked).numpy())
    digest = hashlib.sha256(descriptor).hexdigest()[:12]
    return BlockedLayout(tuple(blocked.shape), int(torch.ops.mkldnn._nbytes(blocked)), digest, descriptor)


def form_of(shape: Sequence[int], geometry: Geometry, input_shape: Sequence[int]) -> BlockedLayout:
    """The form that weights of that shape would be given here, by packing some."""
    return form(pack(torch.zeros(tuple(shape)), geometry, input_shape))


def bytes_of(blocked: Tensor) -> bytes:
    """An opaque tensor's memory."""
    return ctypes.string_at(torch.ops.mkldnn.data_ptr(blocked), int(torch.ops.mkldnn._nbytes(blocked)))


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    library.aoti_torch_create_tensor_from_blob_v2.restype = ctypes.c_int32
    return library
