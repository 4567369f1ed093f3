"""Reads weights back from a packed file, in the form that they had before they were packed."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from split_infer_ros.split.torch_network import TorchNetwork
from split_infer_ros.weight_streaming.binding import weight_views
from split_infer_ros.weight_streaming.packed_header import Piece
from split_infer_ros.weight_streaming.packed_partition import PackedPartition, open_packed
from split_infer_ros.weight_streaming.ring_memory import byte_view, page_aligned
from split_infer_ros.weight_streaming.weights_file import Block, WeightsFile


def unpack_weights(
    network: TorchNetwork, path: Path, *, num_threads: int | None, names: Collection[str]
) -> dict[str, Tensor]:
    """Returns tensors by name, with the exact values that were packed. Each tensor has its own memory.

    Args:
        network: the network. The file holds its weights.
        path: the packed file.
        num_threads: number of CPU threads for which the weights were packed; None for a GPU.
        names: names of the wanted tensors in the network's state.

    Raises:
        OutOfMemory: the host has too little memory.
        StreamError: the weights cannot be read.
        WeightsError: the file is another model's, or damaged.
    """
    packed = open_packed(network, network.graph.module, path, num_threads=num_threads)
    tiles: dict[str, list[Tensor]] = {}
    with closing(WeightsFile.open(path)) as file:
        for piece in packed.header.pieces:
            if any(tensor.name in names for tensor in piece.tensors):
                for name, values in _read(packed, file, piece).items():
                    tiles.setdefault(name, []).append(values)
    return {name: rows[0] if len(rows) == 1 else torch.cat(rows) for name, rows in tiles.items() if name in names}


def _read(packed: PackedPartition, file: WeightsFile, piece: Piece) -> dict[str, Tensor]:
    memory = page_aligned(piece.nbytes)
    file.load([Block((piece,))], byte_view(memory))
    views = weight_views(packed, piece, {(piece.layer, piece.row): (memory, 0)})
    return {name: _copy(values) for name, values in views.items()}


def _copy(values: Tensor) -> Tensor:
    plain = values.to_dense().contiguous(memory_format=torch.channels_last) if values.is_mkldnn else values
    return plain.clone()
