"""Packs a model's weights into a file: in the order of the layers, and in the layouts that the kernels read.

A large layer's weights are stored in tiles. A tile is some rows of the weights, along their first dimension.
"""

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
from split_infer_ros.split.torch_network import TorchNetwork
from split_infer_ros.telemetry.machine import instruction_set
from split_infer_ros.weight_streaming import blocked_weights
from split_infer_ros.weight_streaming.layers import Layer, input_shapes, layers_of, skeleton, streamable_graph
from split_infer_ros.weight_streaming.packed_file import write_packed
from split_infer_ros.weight_streaming.packed_header import (
    ALIGN,
    CHANNELS_LAST,
    PLAIN,
    PackedHeader,
    PackedTensor,
    Piece,
)

TILE_MB = 5.0  # smaller tiles are read more slowly, larger ones leave a ring little room to read ahead
ROW_MULTIPLE = 16  # tiles have a multiple of this many rows: oneDNN's widest block of channels


def packing_target(num_threads: int | None) -> str:
    """Returns a text that describes the machine that a file's layouts are made for.

    Args:
        num_threads: number of CPU threads that compute. None means a GPU: all GPUs have the same layouts.
    """
    if num_threads is None:
        return "any GPU"
    return f"torch {torch.__version__}, {instruction_set()}, {num_threads} threads"


def pack_model(
    network: TorchNetwork, path: Path, *, num_threads: int | None, batch_size: int = 1, tile_mb: float = TILE_MB
) -> PackedHeader:
    """Writes a model's weights to a file for this machine.

    Args:
        network: the network of the model. The file serves all of its split points.
        path: the file to write.
        num_threads: number of CPU threads that will run the model. None means a GPU, where all layouts are plain.
        batch_size: the batch size with which the model will run. Other batch sizes work, but some run more slowly.
        tile_mb: the largest size of a layer, in megabytes, that is stored and streamed as one tile. Larger layers are
            split into several tiles.

    Returns:
        The header of the file.

    Raises:
        OSError: the file cannot be written.
        WeightsError: the model has no weights, or weights that were released from memory cannot be read again.
    """
    state = network.graph.state()
    for name, tensor in state.items():
        if tensor.untyped_storage().nbytes() < tensor.nbytes:  # a stand-in
            raise WeightsError(f"{network.entry.name} has no weights to pack: '{name}' was never loaded.")
    graph = network.graph.module
    shapes = input_shapes(skeleton(graph), (batch_size, *network.entry.image_shape))
    header = PackedHeader(
        model=network.entry.name,
        fingerprint=network.fingerprint,
        values=weights_digest(state),
        machine=packing_target(num_threads),
        pieces=(),
        source=network.weights_source,
    )

    def contents() -> Iterator[tuple[Piece, bytes]]:
        for layer in layers_of(streamable_graph(graph, fuse=num_threads is not None)):
            for row, tensors in _tiles(layer, state, int(1e6 * tile_mb)):
                yield _piece(layer, row, tensors, shapes.get(layer.name, set()))

    def write() -> PackedHeader:
        with torch.no_grad():
            return write_packed(path, header, contents())

    return run_with_threads(num_threads, write)


def _tiles(layer: Layer, state: Mapping[str, Tensor], tile_bytes: int) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Yields each tile of a layer: its first row and its tensors. A layer of ``tile_bytes`` or less is one tile."""
    tensors = {name: state[name].detach() for name in layer.tensors}
    weight = tensors.get(f"{layer.name}.weight")
    rows = math.inf
    if weight is not None and can_be_tiled(layer.module):
        rows = max(1, tile_bytes // (weight.nbytes // len(weight)) // ROW_MULTIPLE) * ROW_MULTIPLE
    if weight is None or rows >= len(weight):
        yield 0, tensors
        return
    for row in range(0, len(weight), int(rows)):
        yield row, {name: tensor[row : row + int(rows)] for name, tensor in tensors.items()}


def can_be_tiled(module: nn.Module | None) -> bool:
    """Whether a layer can be computed tile by tile: each row of its weights computes some of the results alone.

    True for linear layers, and for fused convolutions without groups.
    """
    return type(module) is nn.Linear or (isinstance(module, FusedConv2d) and module.geometry[3] == 1)


def _piece(layer: Layer, row: int, tensors: Mapping[str, Tensor], shapes: set[tuple[int, ...]]) -> tuple[Piece, bytes]:
    """Returns a tile's entry in the header, and its bytes. The entry lacks the place in the file."""
    entries: list[PackedTensor] = []
    data = b""
    for name, tensor in tensors.items():
        data = data.ljust(-(-len(data) // ALIGN) * ALIGN, b"\0")
        entry, values = _packed_tensor(layer.module, name, tensor, shapes)
        entries.append(replace(entry, offset=len(data), nbytes=len(values)))
        data += values
    return Piece(layer=layer.name, row=row, offset=0, nbytes=0, crc32=0, tensors=tuple(entries)), data


def _packed_tensor(
    module: nn.Module | None, name: str, tensor: Tensor, shapes: set[tuple[int, ...]]
) -> tuple[PackedTensor, bytes]:
    """Returns a tensor's entry in the header, and its bytes. The entry lacks the place in the tile."""
    plain = PackedTensor(
        name=name, shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."), offset=0, nbytes=0
    )
    is_convolution = tensor.dim() == 4 and isinstance(module, FusedConv2d)
    if isinstance(module, FusedConv2d) and is_convolution and len(shapes) == 1 and blocked_weights.is_supported():
        (input_shape,) = shapes  # several input shapes would need several layouts
        blocked = blocked_weights.to_blocked(tensor, module.geometry, input_shape)
        digest = blocked_weights.layout_of(blocked).digest
        return replace(plain, layout=digest, input_shape=input_shape), blocked_weights.bytes_of(blocked)
    if is_convolution or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)):
        return replace(plain, layout=CHANNELS_LAST), _bytes(tensor.permute(0, 2, 3, 1))
    return replace(plain, layout=PLAIN), _bytes(tensor)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """Returns a digest of all weights: of their names, types, shapes and values."""
    digest = hashlib.blake2b(digest_size=12)
    for name in sorted(state):
        values = state[name].detach()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(_bytes(values))
    return digest.hexdigest()
