"""Convolution weights in oneDNN's own layouts, over memory that this package owns.

A convolution reads weights directly if they have the layout that oneDNN chose for it. It converts plain weights at each
call, which takes about a tenth more time and as much memory again. PyTorch allocates tensors in oneDNN's layouts
itself. This module places them in existing memory instead. It uses the C interface through which PyTorch's compiled
models load their constants.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Geometry = tuple[list[int], list[int], list[int], int]  # padding, stride, dilation, groups


# oneDNN 3's descriptor has two fields of 32 bits (data type and kind of format), each before fields of 64 bits. The
# padding after them holds what was on the stack before, which differs from process to process.
DESCRIPTOR_BYTES, PADDING, PADDING_BYTES = 772, (0x6C, 0x13C), 4


@dataclass(frozen=True, slots=True)
class BlockedLayout:
    """The layout of one convolution's weights. It must come from this process, because oneDNN trusts the descriptor.

    Attributes:
        shape: shape of the weights: (output channels, input channels / groups, kernel height, kernel width).
        nbytes: bytes of the weights, including the padding of channels.
        digest: text that identifies the layout.
        descriptor: oneDNN's own description of the layout.
    """

    shape: tuple[int, ...]
    nbytes: int
    digest: str
    descriptor: bytes

    def view(self, address: int) -> Tensor:
        """Returns the memory at an address as a float32 tensor of this layout. Nothing is copied.

        The memory must stay mapped while the tensor is in use.

        Raises:
            RuntimeError: torch refused to create the tensor.
        """
        sizes = (ctypes.c_int64 * len(self.shape))(*self.shape)
        strides = (ctypes.c_int64 * len(self.shape))(*torch.empty(self.shape, device="meta").stride())
        handle = ctypes.c_void_p()
        library = _libtorch()
        failed = library.aoti_torch_create_tensor_from_blob_v2(
            ctypes.c_void_p(address),
            ctypes.c_int64(len(self.shape)),
            sizes,
            strides,
            ctypes.c_int64(0),  # offset of the storage
            library.aoti_torch_dtype_float32(),
            library.aoti_torch_device_type_cpu(),
            0,  # index of the device
            ctypes.byref(handle),
            library.aoti_torch_layout__mkldnn(),
            self.descriptor,
            ctypes.c_int64(len(self.descriptor)),
        )
        if failed:
            raise RuntimeError(f"torch made no tensor of shape {self.shape} over memory that it does not own.")
        new_capsule = ctypes.pythonapi.PyCapsule_New
        new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
        tensor: Tensor = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(new_capsule(handle, None, None))
        return tensor


@functools.cache
def is_supported() -> bool:
    """True if this torch has oneDNN and can create blocked tensors over memory that it does not own."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        weights = torch.arange(256.0).reshape(16, 16, 1, 1)
        blocked = to_blocked(weights, ([0, 0], [1, 1], [1, 1], 1), (1, 16, 8, 8))
        view = layout_of(blocked).view(torch.ops.mkldnn.data_ptr(blocked))
        return bool(torch.equal(view.to_dense(), weights))
    except (AttributeError, RuntimeError):
        return False


def to_blocked(weights: Tensor, geometry: Geometry, input_shape: Sequence[int]) -> Tensor:
    """Converts a convolution's weights to an opaque tensor: its memory has one of oneDNN's own layouts.

    Args:
        weights: float32 (output channels, input channels / groups, kernel height, kernel width).
        geometry: padding, stride, dilation and groups of the convolution.
        input_shape: the shape of the convolution's input, (N, C, H, W). oneDNN chooses the layout that is fastest
            for this shape and for torch's current number of threads.
    """
    blocked: Tensor = torch.ops.mkldnn._reorder_convolution_weight(weights, *geometry, list(input_shape))
    return blocked


def layout_of(blocked: Tensor) -> BlockedLayout:
    """Returns the layout of a tensor that ``to_blocked`` made."""
    descriptor = bytes(torch.ops.mkldnn._get_mkldnn_serialized_md(blocked).numpy())
    fields = bytearray(descriptor)
    if len(fields) == DESCRIPTOR_BYTES:
        for begin in PADDING:
            fields[begin : begin + PADDING_BYTES] = bytes(PADDING_BYTES)
    digest = hashlib.sha256(fields).hexdigest()[:12]
    return BlockedLayout(tuple(blocked.shape), int(torch.ops.mkldnn._nbytes(blocked)), digest, descriptor)


def layout_for(shape: Sequence[int], geometry: Geometry, input_shape: Sequence[int]) -> BlockedLayout:
    """Returns the layout that ``to_blocked`` gives to weights of a shape on this machine.

    The function converts zeros to find out. The zeros take no memory, because nothing writes to their pages.
    """
    pages = mmap.mmap(-1, 4 * math.prod(shape), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    zeros = torch.frombuffer(pages, dtype=torch.float32)
    return layout_of(to_blocked(zeros.view(tuple(shape)), geometry, input_shape))


def bytes_of(blocked: Tensor) -> bytes:
    """Returns a copy of the memory of a tensor that ``to_blocked`` made."""
    return ctypes.string_at(torch.ops.mkldnn.data_ptr(blocked), int(torch.ops.mkldnn._nbytes(blocked)))


@functools.cache
def _libtorch() -> Any:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    library.aoti_torch_create_tensor_from_blob_v2.restype = ctypes.c_int32
    return library
