"""Binds the layers of a packed partition once, for all passes, to the memory that will hold their weights."""

from __future__ import annotations

from torch import Tensor, fx, nn

from split_infer_ros.buffers.host_arrays import dtype_named, torch_dtype
from split_infer_ros.engines.fusion import FusedConv2d
from split_infer_ros.split.graph import set_state
from split_infer_ros.weight_streaming.packed_header import CHANNELS_LAST, PLAIN, Piece
from split_infer_ros.weight_streaming.packed_partition import LayerCall, PackedPartition
from split_infer_ros.weight_streaming.streamed_layers import StepHooks, StreamedLayer, Tile, TiledConv2d, TiledLinear
from split_infer_ros.weight_streaming.weights_file import Block

PiecePlaces = dict[tuple[str, int], tuple[Tensor, int]]  # (layer, first row) -> memory of a piece, its offset


def add_places(places: PiecePlaces, block: Block, memory: Tensor, offset: int) -> None:
    """Records where a block's pieces lie. The block begins at ``offset`` in uint8 ``memory``."""
    for piece in block.pieces:
        places[piece.layer, piece.row] = memory, offset + piece.offset - block.offset


def bind_weights(packed: PackedPartition, places: PiecePlaces, hooks: StepHooks) -> fx.GraphModule:
    """Returns the partition's graph with layers that wait for their weights.

    Args:
        packed: the partition. Its graph is changed in place.
        places: the places of all pieces.
        hooks: functions that are called before and after each step.
    """
    graph = packed.graph
    for piece in packed.kept:
        set_state(graph, weight_views(packed, piece, places))
    for call in packed.calls:
        path = f"streamed_{call.steps[0]}"
        graph.add_module(path, _streamed_layer(packed, call, places, hooks))
        call.node.target = path
    graph.delete_all_unused_submodules()
    graph.recompile()
    return graph


def _streamed_layer(
    packed: PackedPartition, call: LayerCall, places: PiecePlaces, hooks: StepHooks
) -> StreamedLayer | TiledConv2d | TiledLinear:
    module, name = call.layer.module, call.layer.name
    assert isinstance(module, nn.Module)
    pieces = packed.pieces[name]
    views = [weight_views(packed, piece, places) for piece in pieces]
    if not isinstance(module, FusedConv2d) and len(pieces) == 1:
        set_state(packed.graph, views[0])
        return StreamedLayer(module, call.steps[0], hooks)
    tiles = [
        Tile(step, piece.row, view[f"{name}.weight"], view.get(f"{name}.bias"))
        for step, piece, view in zip(call.steps, pieces, views, strict=True)
    ]
    return TiledConv2d(module, tiles, hooks) if isinstance(module, FusedConv2d) else TiledLinear(tiles, hooks)


def weight_views(packed: PackedPartition, piece: Piece, places: PiecePlaces) -> dict[str, Tensor]:
    """Returns the tensors of a piece, by name, as views of the memory in which it lies."""
    memory, offset = places[piece.layer, piece.row]
    views = {}
    for tensor in piece.tensors:
        start = offset + tensor.offset
        if tensor.layout in (PLAIN, CHANNELS_LAST):
            values = memory[start : start + tensor.nbytes].view(torch_dtype(dtype_named(tensor.dtype)))
            if tensor.layout == CHANNELS_LAST:
                n, c, h, w = tensor.shape
                views[tensor.name] = values.view(n, h, w, c).permute(0, 3, 1, 2)
            else:
                views[tensor.name] = values.view(tensor.shape)
        else:
            views[tensor.name] = packed.layouts[piece.layer, piece.row].view(memory.data_ptr() + start)
    return views
