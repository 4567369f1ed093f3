"""Weights out of a packed file again, as they were before."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor

from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.packed_file import Piece
from split_infer_ros.weight_streaming.partition_weights import Contents, open_contents
from split_infer_ros.weight_streaming.ring_memory import buffer, page_aligned
from split_infer_ros.weight_streaming.streamed_partition import load, views_of
from split_infer_ros.weight_streaming.weights_file import Block, WeightsFile


def unpack(model: SplitModel, path: Path, threads: int | None, names: Collection[str]) -> dict[str, Tensor]:
    """Tensors by name, each with memory of its own and the very bits that were packed.

    Raises:
        WeightsError: it is another model's file, or damaged.
        StreamError: it cannot be read.
    """
    contents = open_contents(model, model.graph, path, threads)
    file = WeightsFile(path)
    parts: dict[str, list[Tensor]] = {}
    try:
        for piece in contents.header.pieces:
            if any(tensor.name in names for tensor in piece.tensors):
                for name, values in _read(contents, file, piece).items():
                    parts.setdefault(name, []).append(values)
    finally:
        file.close()
    return {name: rows[0] if len(rows) == 1 else torch.cat(rows) for name, rows in parts.items() if name in names}


def _read(contents: Contents, file: WeightsFile, piece: Piece) -> dict[str, Tensor]:
    memory = page_aligned(piece.nbytes)
    load(file, [Block((piece,))], buffer(memory))
    views = views_of(contents, piece, {(piece.layer, piece.row): (memory, 0)})
    return {name: _own(values) for name, values in views.items()}


def _own(values: Tensor) -> Tensor:
    plain = values.to_dense().contiguous(memory_format=torch.channels_last) if values.is_mkldnn else values
    return plain.clone()
