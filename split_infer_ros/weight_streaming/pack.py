"""A model's weights into a packed file: in the order in which they run, as kernels want them, large ones in tiles."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from split_infer_ros.engines.fusion import FusedConv2d
from split_infer_ros.errors import WeightsError
from split_infer_ros.runtime.num_threads import run_with_threads
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.machine import instruction_set
from split_infer_ros.weight_streaming import blocked_weights
from split_infer_ros.weight_streaming.layers import Layer, input_shapes, layers_of, skeleton, to_be_streamed
from split_infer_ros.weight_streaming.packed_file import (
    ALIGN,
    CHANNELS_LAST,
    PLAIN,
    PackedHeader,
    PackedTensor,
    Piece,
    write_packed,
)

TILE_MB = 5.0  # smaller ones are read more slowly, larger ones leave a ring little room to read ahead
ROWS = 16  # a tile has a multiple of them: oneDNN's widest block of channels


def machine(threads: int | None) -> str:
    """On what the layouts of a file depend, in words; on a GPU on nothing."""
    if threads is None:
        return "any GPU"
    return f"torch {torch.__version__}, {instruction_set()}, {threads} threads"


def pack_model(
    model: SplitModel, path: Path, threads: int | None, batch_size: int = 1, tile_mb: float = TILE_MB
) -> PackedHeader:
    """Write a model's weights for this machine.

    Args:
        model: on the CPU, in float32; all split points share the file.
        path: of the file.
        threads: with which it will run; None for a GPU, where all lies plain.
        batch_size: with which it will run; others work, some more slowly.
        tile_mb: a layer above it is stored, and streamed, by tiles of its rows.

    Raises:
        OSError: the file cannot be written.
        WeightsError: the model has none, or weights that were released cannot be read again.
    """
    state = model.state()
    for name, tensor in state.items():
        if tensor.untyped_storage().nbytes() < tensor.nbytes:  # a stand-in
            raise WeightsError(f"{model.entry.name} has no weights to be packed: '{name}' was never loaded.")
    shapes = input_shapes(skeleton(model.graph), (batch_size, *model.entry.image_shape))
    head = PackedHeader(model.entry.name, model.fingerprint, digest(state), machine(threads), ())

    def contents() -> Iterator[tuple[Piece, bytes]]:
        for layer in layers_of(to_be_streamed(model.graph, fuse=threads is not None)):
            for row, tensors in _tiles(layer, state, int(1e6 * tile_mb)):
                yield _piece(layer, row, tensors, shapes.get(layer.name, set()))

    def write() -> PackedHeader:
        with torch.no_grad():
            return write_packed(path, head, contents())

    return run_with_threads(threads, write)


def _tiles(layer: Layer, state: Mapping[str, Tensor], most: int) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """A layer's tensors, or, of one above so many bytes, those of some rows after others with the first one's index."""
    tensors = {name: state[name].detach() for name in layer.tensors}
    weight = tensors.get(f"{layer.name}.weight")
    rows = math.inf
    if weight is not None and can_be_tiled(layer.module):
        rows = max(1, most // (weight.nbytes // len(weight)) // ROWS) * ROWS
    if weight is None or rows >= len(weight):
        yield 0, tensors
        return
    for row in range(0, len(weight), int(rows)):
        yield row, {name: tensor[row : row + int(rows)] for name, tensor in tensors.items()}


def can_be_tiled(module: nn.Module | None) -> bool:
    """True for layers each of whose rows gives some of the results."""
    return type(module) is nn.Linear or (isinstance(module, FusedConv2d) and module.geometry[3] == 1)


def _piece(layer: Layer, row: int, tensors: Mapping[str, Tensor], shapes: set[tuple[int, ...]]) -> tuple[Piece, bytes]:
    entries: list[PackedTensor] = []
    data = b""
    for name, tensor in tensors.items():
        data = data.ljust(-(-len(data) // ALIGN) * ALIGN, b"\0")
        entry, values = _tensor(layer.module, name, tensor, shapes)
        entries.append(replace(entry, offset=len(data), nbytes=len(values)))
        data += values
    return Piece(layer.name, row, 0, 0, 0, tuple(entries)), data


def _tensor(
    module: nn.Module | None, name: str, tensor: Tensor, shapes: set[tuple[int, ...]]
) -> tuple[PackedTensor, bytes]:
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if tensor.dim() == 4 and isinstance(module, FusedConv2d):
        if len(shapes) == 1 and blocked_weights.is_supported():  # more would each want a layout of its own
            (input_shape,) = shapes
            packed = blocked_weights.pack(tensor, module.geometry, input_shape)
            layout = blocked_weights.form(packed).digest
            return PackedTensor(name, shape, dtype, 0, 0, layout, input_shape), blocked_weights.bytes_of(packed)
        return PackedTensor(name, shape, dtype, 0, 0, CHANNELS_LAST), _bytes(tensor.permute(0, 2, 3, 1))
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return PackedTensor(name, shape, dtype, 0, 0, CHANNELS_LAST), _bytes(tensor.permute(0, 2, 3, 1))
    return PackedTensor(name, shape, dtype, 0, 0, PLAIN), _bytes(tensor)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def digest(state: Mapping[str, Tensor]) -> str:
    """Tells these weights from others of the same model."""
    found = hashlib.blake2b(digest_size=12)
    for name in sorted(state):
        values = state[name].detach()
        found.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        found.update(_bytes(values))
    return found.hexdigest()
