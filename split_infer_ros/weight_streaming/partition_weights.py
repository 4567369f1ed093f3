"""What a half of a model reads of a packed file, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import fx

from split_infer_ros.engines.fusion import FusedConv2d
from split_infer_ros.errors import WeightsError
from split_infer_ros.runtime.num_threads import run_with_threads
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming import blocked_weights
from split_infer_ros.weight_streaming.blocked_weights import BlockedLayout
from split_infer_ros.weight_streaming.layers import Layer, layer_of, to_be_streamed
from split_infer_ros.weight_streaming.pack import can_be_tiled, machine
from split_infer_ros.weight_streaming.packed_file import (
    CHANNELS_LAST,
    PLAIN,
    PackedHeader,
    PackedTensor,
    Piece,
    read_header,
)
from split_infer_ros.weight_streaming.ring import CHUNK
from split_infer_ros.weight_streaming.weights_file import Block

LEAST = 1 << 20  # bytes of a read: smaller layers are read with their neighbours


@dataclass(frozen=True, slots=True)
class Call:
    """A node that uses a layer, and the steps in which it does: one for each piece."""

    node: fx.Node
    layer: Layer
    steps: range


@dataclass(frozen=True, eq=False)
class Contents:
    """A partition without weights, and where they are.

    Attributes:
        path: of the file.
        header: the file's.
        graph: the partition.
        calls: in the order of execution.
        pieces: of each layer, by name.
        forms: of convolutions' weights, by layer and first row.
        kept: pieces of tensors that the graph reads by itself, which stay in memory.
        blocks: what is read as one, in the order of first use.
        uses: for each step its block.
    """

    path: Path
    header: PackedHeader
    graph: fx.GraphModule
    calls: tuple[Call, ...]
    pieces: dict[str, tuple[Piece, ...]]
    forms: dict[tuple[str, int], BlockedLayout]
    kept: tuple[Piece, ...]
    blocks: tuple[Block, ...]
    uses: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of the blocks."""
        return tuple(block.nbytes for block in self.blocks)

    @property
    def kept_bytes(self) -> int:
        """Of what stays in memory whatever the ring."""
        return sum(piece.nbytes for piece in self.kept)


def open_contents(model: SplitModel, part: fx.GraphModule, path: Path, threads: int | None) -> Contents:
    """What of a file a part of a model reads.

    Args:
        model: whose file it must be; its weights are not looked at.
        part: its graph, or a partition.
        path: of the file.
        threads: with which it will run; None for a GPU.

    Raises:
        WeightsError: it is damaged, another model's, or was packed for another machine.
    """
    header = read_header(path)
    if header.fingerprint != model.fingerprint:
        raise WeightsError(
            f"{path} holds the weights of {header.model} ({header.fingerprint}), not of {model.entry.name} "
            f"({model.fingerprint})."
        )
    if header.machine != machine(threads):
        raise WeightsError(
            f"{path} was packed for another machine ({header.machine}) than this one ({machine(threads)}): "
            "pack it again."
        )
    graph = to_be_streamed(part, fuse=threads is not None)
    by_layer: dict[str, list[Piece]] = {}
    for piece in header.pieces:
        by_layer.setdefault(piece.layer, []).append(piece)
    calls, kept, step = [], {}, 0
    for node in graph.graph.nodes:
        layer = layer_of(graph, node)
        if layer is None:
            continue
        pieces = by_layer.get(layer.name, [])
        _check(layer, pieces, graph, path)
        if layer.module is None:
            kept[layer.name] = pieces[0]
            continue
        calls.append(Call(node, layer, range(step, step + len(pieces))))
        step += len(pieces)
    used = {call.layer.name: tuple(by_layer[call.layer.name]) for call in calls}
    blocks, uses = _group(calls, used)
    forms = run_with_threads(threads, lambda: _forms(calls, used, path))
    return Contents(path, header, graph, tuple(calls), used, forms, tuple(kept.values()), blocks, uses)


def _group(calls: Sequence[Call], pieces: dict[str, tuple[Piece, ...]]) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """Small neighbours are read as one, no larger than the largest piece; a tiled layer's are not mixed with others."""
    largest = max((piece.nbytes for own in pieces.values() for piece in own), default=0)
    most = min(CHUNK, max(largest, LEAST))
    groups: list[list[Piece]] = []
    index: dict[tuple[str, int], int] = {}
    for call in calls:
        own = pieces[call.layer.name]
        for piece in own:
            if (piece.layer, piece.row) in index:
                continue
            last = groups[-1][-1] if groups else None
            joins = (
                last is not None
                and len(own) == 1
                and len(pieces[last.layer]) == 1
                and last.offset + last.nbytes == piece.offset
                and sum(each.nbytes for each in groups[-1]) + piece.nbytes <= most
            )
            if joins:
                groups[-1].append(piece)
            else:
                groups.append([piece])
            index[piece.layer, piece.row] = len(groups) - 1
    uses = [index[piece.layer, piece.row] for call in calls for piece in pieces[call.layer.name]]
    return tuple(Block(tuple(group)) for group in groups), tuple(uses)


def _check(layer: Layer, pieces: Sequence[Piece], graph: fx.GraphModule, path: Path) -> None:
    """The header's shapes must be the model's: what is built on them trusts them."""
    expected = _shapes(layer, graph)
    tiled = len(pieces) > 1
    row = 0
    for piece in pieces:
        count = piece.tensors[0].shape[:1] if piece.tensors else ()
        found = {tensor.name: (tensor.shape, tensor.dtype) for tensor in piece.tensors}
        wanted = {name: (count + shape[1:] if tiled else shape, dtype) for name, (shape, dtype) in expected.items()}
        if found != wanted or piece.row != row or (tiled and not can_be_tiled(layer.module)):
            raise WeightsError(f"{path} has layer '{layer.name}' in a form that is not the model's.")
        row += sum(count)
    if not pieces or (tiled and row != expected[layer.tensors[0]][0][0]):
        raise WeightsError(f"{path} lacks layer '{layer.name}', or rows of it.")


def _shapes(layer: Layer, graph: fx.GraphModule) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of a layer's tensors, by name."""
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for name in layer.tensors:
        value: object = graph if layer.module is None else layer.module
        for part in (name if layer.module is None else name[len(layer.name) + 1 :]).split("."):
            value = getattr(value, part)
        assert isinstance(value, torch.Tensor)
        found[name] = tuple(value.shape), str(value.dtype).removeprefix("torch.")
    return found


def _forms(
    calls: Sequence[Call], pieces: dict[str, tuple[Piece, ...]], path: Path
) -> dict[tuple[str, int], BlockedLayout]:
    """Of what was packed for oneDNN: as this machine packs it, which the file has to agree with."""
    known: dict[object, BlockedLayout] = {}
    forms: dict[tuple[str, int], BlockedLayout] = {}
    for call in calls:
        for piece, tensor in _blocked(pieces[call.layer.name]):
            module = call.layer.module
            if not isinstance(module, FusedConv2d) or not blocked_weights.is_supported():
                raise WeightsError(f"{path} has layer '{piece.layer}' in a layout that this machine does not know.")
            key = tensor.shape, repr(module.geometry), tensor.input_shape
            if key not in known:
                try:
                    known[key] = blocked_weights.form_of(tensor.shape, module.geometry, tensor.input_shape)
                except RuntimeError as error:  # no convolution takes inputs of that shape
                    raise WeightsError(
                        f"{path} has layer '{piece.layer}' for inputs of shape {tensor.input_shape}, "
                        "which it cannot take."
                    ) from error
            if (known[key].digest, known[key].nbytes) != (tensor.layout, tensor.nbytes):
                raise WeightsError(
                    f"{path} has layer '{piece.layer}' in another layout than this machine's: pack it again."
                )
            forms[piece.layer, piece.row] = known[key]
    return forms


def _blocked(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, PackedTensor]]:
    return (
        (piece, tensor) for piece in pieces for tensor in piece.tensors if tensor.layout not in (PLAIN, CHANNELS_LAST)
    )
