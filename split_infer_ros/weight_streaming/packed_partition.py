"""A partition with its weights in a packed file: its graph, and the piece of the file that each step reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import fx

from split_infer_ros.engines.fusion import FusedConv2d
from split_infer_ros.errors import WeightsError
from split_infer_ros.runtime.heap import trim
from split_infer_ros.runtime.num_threads import run_with_threads
from split_infer_ros.split.torch_network import TorchNetwork
from split_infer_ros.weight_streaming import blocked_weights
from split_infer_ros.weight_streaming.blocked_weights import BlockedLayout
from split_infer_ros.weight_streaming.layers import Layer, layer_of, streamable_graph
from split_infer_ros.weight_streaming.pack import can_be_tiled, packing_target
from split_infer_ros.weight_streaming.packed_file import read_header
from split_infer_ros.weight_streaming.packed_header import CHANNELS_LAST, PLAIN, PackedHeader, PackedTensor, Piece
from split_infer_ros.weight_streaming.ring_plan import CHUNK_BYTES
from split_infer_ros.weight_streaming.weights_file import Block

MIN_BLOCK_BYTES = 1 << 20  # smaller layers are read together with their neighbours


@dataclass(frozen=True, slots=True)
class LayerCall:
    """A node of a partition's graph that uses a layer's weights. It runs in one step for each piece of the layer.

    Attributes:
        node: the node.
        layer: the layer.
        steps: the numbers of the node's steps, counted over the whole partition.
    """

    node: fx.Node
    layer: Layer
    steps: range


@dataclass(frozen=True, eq=False)
class PackedPartition:
    """A partition's graph without weights, and the places of its weights in a file.

    Attributes:
        path: the file's path.
        header: the file's header.
        graph: the partition's graph.
        calls: the nodes that use layers, in the order of execution.
        pieces: the pieces of each layer in ``calls``, by the layer's name.
        layouts: the blocked layouts of convolution weights, by the name of the layer and the first row of the piece.
        kept: pieces of tensors that the graph reads directly, not through a layer. They always stay in memory.
        blocks: groups of pieces that are read together, in the order of first use.
        step_blocks: the index of each step's block.
    """

    path: Path
    header: PackedHeader
    graph: fx.GraphModule
    calls: tuple[LayerCall, ...]
    pieces: dict[str, tuple[Piece, ...]]
    layouts: dict[tuple[str, int], BlockedLayout]
    kept: tuple[Piece, ...]
    blocks: tuple[Block, ...]
    step_blocks: tuple[int, ...]

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Bytes of each block."""
        return tuple(block.nbytes for block in self.blocks)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the pieces in ``kept``, which stay in memory beside the ring."""
        return sum(piece.nbytes for piece in self.kept)


def open_packed(
    network: TorchNetwork, graph: fx.GraphModule, path: Path, *, num_threads: int | None
) -> PackedPartition:
    """Finds the weights of a model or partition in a file. Reads the header, but no weights.

    Args:
        network: the network that the file must fit. The weights that it has in memory are not used.
        graph: the graph of the model, or of one of its partitions.
        path: the packed file.
        num_threads: number of CPU threads that will run the partition; None for a GPU.

    Raises:
        WeightsError: the file is damaged, or was packed for another model or machine.
    """
    header = read_header(path)
    _check_header(header, network, path, num_threads)
    graph = streamable_graph(graph, fuse=num_threads is not None)
    by_layer: dict[str, list[Piece]] = {}
    for piece in header.pieces:
        by_layer.setdefault(piece.layer, []).append(piece)
    calls, kept, step = [], {}, 0
    for node in graph.graph.nodes:
        layer = layer_of(graph, node)
        if layer is None:
            continue
        pieces = by_layer.get(layer.name, [])
        _check_pieces(layer, pieces, graph, path)
        if layer.module is None:
            kept[layer.name] = pieces[0]
            continue
        calls.append(LayerCall(node, layer, range(step, step + len(pieces))))
        step += len(pieces)
    used = {call.layer.name: tuple(by_layer[call.layer.name]) for call in calls}
    blocks, step_blocks = _group(calls, used)
    layouts = run_with_threads(num_threads, lambda: _layouts(calls, used, path))
    trim()  # gives back the memory in which ``_layouts`` converted weights
    return PackedPartition(
        path=path,
        header=header,
        graph=graph,
        calls=tuple(calls),
        pieces=used,
        layouts=layouts,
        kept=tuple(kept.values()),
        blocks=blocks,
        step_blocks=step_blocks,
    )


def _check_header(header: PackedHeader, network: TorchNetwork, path: Path, num_threads: int | None) -> None:
    if header.fingerprint != network.fingerprint:
        raise WeightsError(
            f"{path} holds the weights of {header.model} ({header.fingerprint}), not of {network.entry.name} "
            f"({network.fingerprint})."
        )
    if header.machine != packing_target(num_threads):
        raise WeightsError(
            f"{path} was packed for another machine ({header.machine}) than this one ({packing_target(num_threads)}): "
            "pack it again."
        )


def _group(
    calls: Sequence[LayerCall], pieces: dict[str, tuple[Piece, ...]]
) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """Groups small neighbouring pieces into blocks. Returns the blocks, and the index of each step's block.

    A group is no larger than the largest piece, 1 MiB if that is more, and never larger than a chunk. Each tile of a
    layer is a block alone.
    """
    largest = max((piece.nbytes for own in pieces.values() for piece in own), default=0)
    max_bytes = min(CHUNK_BYTES, max(largest, MIN_BLOCK_BYTES))
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
                and sum(each.nbytes for each in groups[-1]) + piece.nbytes <= max_bytes
            )
            if joins:
                groups[-1].append(piece)
            else:
                groups.append([piece])
            index[piece.layer, piece.row] = len(groups) - 1
    step_blocks = [index[piece.layer, piece.row] for call in calls for piece in pieces[call.layer.name]]
    return tuple(Block(tuple(group)) for group in groups), tuple(step_blocks)


def _check_pieces(layer: Layer, pieces: Sequence[Piece], graph: fx.GraphModule, path: Path) -> None:
    """Checks that the header's shapes match the model's. Code that uses the pieces relies on that."""
    expected = _shapes(layer, graph)
    is_tiled = len(pieces) > 1
    row = 0
    for piece in pieces:
        rows = piece.tensors[0].shape[:1] if piece.tensors else ()
        found = {tensor.name: (tensor.shape, tensor.dtype) for tensor in piece.tensors}
        wanted = {name: (rows + shape[1:] if is_tiled else shape, dtype) for name, (shape, dtype) in expected.items()}
        if found != wanted or piece.row != row or (is_tiled and not can_be_tiled(layer.module)):
            raise WeightsError(f"{path} has layer '{layer.name}' with other shapes, types or rows than the model's.")
        row += sum(rows)
    if not pieces or (is_tiled and row != expected[layer.tensors[0]][0][0]):
        raise WeightsError(f"{path} lacks layer '{layer.name}', or rows of it.")


def _shapes(layer: Layer, graph: fx.GraphModule) -> dict[str, tuple[tuple[int, ...], str]]:
    """Returns the names of a layer's tensors, and the shape and dtype of each."""
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    for name in layer.tensors:
        value: object = graph if layer.module is None else layer.module
        for part in (name if layer.module is None else name[len(layer.name) + 1 :]).split("."):
            value = getattr(value, part)
        assert isinstance(value, torch.Tensor)
        shapes[name] = tuple(value.shape), str(value.dtype).removeprefix("torch.")
    return shapes


def _layouts(
    calls: Sequence[LayerCall], pieces: dict[str, tuple[Piece, ...]], path: Path
) -> dict[tuple[str, int], BlockedLayout]:
    """Returns this machine's layouts of convolution weights, and checks that the file has the same."""
    cache: dict[object, BlockedLayout] = {}
    layouts: dict[tuple[str, int], BlockedLayout] = {}
    for call in calls:
        for piece, tensor in _blocked_tensors(pieces[call.layer.name]):
            module = call.layer.module
            if not isinstance(module, FusedConv2d) or not blocked_weights.is_supported():
                raise WeightsError(f"{path} has layer '{piece.layer}' in a layout that this machine does not know.")
            key = tensor.shape, repr(module.geometry), tensor.input_shape
            if key not in cache:
                try:
                    cache[key] = blocked_weights.layout_for(tensor.shape, module.geometry, tensor.input_shape)
                except RuntimeError as error:  # no convolution takes inputs of that shape
                    raise WeightsError(
                        f"{path} has layer '{piece.layer}' for inputs of shape {tensor.input_shape}, "
                        "which it cannot take."
                    ) from error
            if (cache[key].digest, cache[key].nbytes) != (tensor.layout, tensor.nbytes):
                raise WeightsError(
                    f"{path} has layer '{piece.layer}' in another layout than this machine's: pack it again."
                )
            layouts[piece.layer, piece.row] = cache[key]
    return layouts


def _blocked_tensors(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, PackedTensor]]:
    return (
        (piece, tensor) for piece in pieces for tensor in piece.tensors if tensor.layout not in (PLAIN, CHANNELS_LAST)
    )
