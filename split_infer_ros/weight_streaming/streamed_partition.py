"""A half of a model whose weights are read as its layers come to run (paper, Demand Layering)."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from torch import Tensor, nn

from split_infer_ros.engines.fusion import FusedConv2d
from split_infer_ros.split.export import set_device
from split_infer_ros.split.graph import set_state
from split_infer_ros.weight_streaming.packed_file import CHANNELS_LAST, DTYPES, PLAIN, Piece
from split_infer_ros.weight_streaming.partition_weights import Contents
from split_infer_ros.weight_streaming.prefetcher import STALL_S
from split_infer_ros.weight_streaming.ring import RingPlan
from split_infer_ros.weight_streaming.ring_memory import RingMemory, buffer, page_aligned
from split_infer_ros.weight_streaming.streamed_layers import Gate, StreamedLayer, Tile, TiledConv2d, TiledLinear
from split_infer_ros.weight_streaming.weight_stream import PrefetchStats
from split_infer_ros.weight_streaming.weights_file import Block, WeightsFile

Places = dict[tuple[str, int], tuple[Tensor, int]]  # where the piece with a layer's row lies


@dataclass(frozen=True, slots=True)
class PassTimes:
    """One pass, seconds.

    Attributes:
        steps: of each step, with what runs between it and the one before, without waiting.
        rest: behind the last step.
        waited: for weights.
    """

    steps: tuple[float, ...]
    rest: float
    waited: float


class StreamedPartition:
    """(N, C, H, W) images, or a split point's tensors, to a tuple of tensors, as with resident weights.

    Args:
        contents: what it reads; taken over.
        plan: of the ring, for the contents' blocks behind the resident ones.
        resident: so many of the first blocks stay in memory.
        direct: whether to read past the page cache, where the file system can.
        stall_s: a pass waits no longer for weights.
        home: where the ring lies, unless it is this process's memory; may be several partitions' in turns.

    Raises:
        StreamError: what stays in memory cannot be read.
        WeightsError: the file cannot be opened.
    """

    def __init__(
        self,
        contents: Contents,
        plan: RingPlan,
        resident: int = 0,
        direct: bool = True,
        stall_s: float = STALL_S,
        ring_memory: RingMemory | None = None,
    ) -> None:
        self._turn = threading.Lock()
        kept = [Block((piece,)) for piece in contents.kept] + list(contents.blocks[:resident])
        streamed = contents.blocks[resident:]
        kept_bytes = sum(block.nbytes for block in kept)
        if ring_memory is None:
            ring_memory = RingMemory(page_aligned(plan.capacity))
        stays = page_aligned(kept_bytes)
        file = WeightsFile(contents.path, direct)
        self.note = file.note
        with ExitStack() as undo:
            undo.callback(file.close)
            load(file, kept, buffer(stays))
            stays, start = stays.to(ring_memory.ring.device), 0
            places: Places = {}
            for block in kept:
                _place(places, block, stays, start)
                start += block.nbytes
            for block, offset in zip(streamed, plan.offsets, strict=True):
                _place(places, block, ring_memory.ring, offset)
            self._memory_bytes = kept_bytes + ring_memory.nbytes
            self._memory = stays, ring_memory  # blocked weights lie there and do not say so
            self._graph = bind(contents, places, self)
            set_device(contents.graph, ring_memory.ring.device)
            self._stage = ring_memory.stage(file, plan, streamed, stall_s)
            undo.pop_all()
        self._ended = [0.0] * len(contents.uses)
        self._waits = [0.0] * len(contents.uses)
        self._times: PassTimes | None = None

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """Run a pass.

        Raises:
            StreamError: weights did not come; the next pass reads all of them again.
        """
        with self._turn:
            self._stage.start()
            start = time.perf_counter()
            failed = True
            try:
                results: Sequence[Tensor] = self._graph(*inputs)
                failed = False
            finally:
                self._stage.finish(failed)
            self._times = self._measured(start, time.perf_counter())
            return results

    def expect(self) -> None:
        """Of the partitions that share the ring, this one will run next: its first weights may be read."""
        self._stage.expect()

    def begin(self, step: int) -> None:
        """Wait for a step's weights."""
        self._waits[step] = self._stage.begin(step)

    def end(self, step: int) -> None:
        """A step is done with its weights."""
        self._ended[step] = time.perf_counter()
        self._stage.end(step)

    @property
    def weight_bytes(self) -> int:
        """Memory that holds weights."""
        return self._memory_bytes

    @property
    def times(self) -> PassTimes | None:
        """Of the last pass that came to its end."""
        return self._times

    def stats(self) -> PrefetchStats:
        """What was read, and how long passes waited."""
        return self._stage.stats()

    def close(self) -> None:
        """Read no more, and let go of the layers, which know this partition; it cannot run any more."""
        self._stage.close()
        self._graph = nn.Module()

    def _measured(self, start: float, end: float) -> PassTimes:
        before = [start, *self._ended]
        steps = [ended - began - waited for began, ended, waited in zip(before, self._ended, self._waits, strict=False)]
        return PassTimes(tuple(steps), end - before[-1], sum(self._waits))


def load(file: WeightsFile, blocks: Sequence[Block], memory: memoryview) -> None:
    """Read blocks into memory, one behind the other, and compare them with their checksums.

    Raises:
        StreamError: they cannot be read, or are not as they were written.
    """
    start = 0
    for block in blocks:
        place = memory[start : start + block.nbytes]
        file.read(block.offset, place, block.pieces[0].layer)
        file.check(block, place)
        start += block.nbytes


def _place(places: Places, block: Block, memory: Tensor, offset: int) -> None:
    for piece in block.pieces:
        places[piece.layer, piece.row] = memory, offset + piece.offset - block.offset


def bind(contents: Contents, places: Places, gate: Gate) -> nn.Module:
    """The partition whose layers see their weights where they will be, for all passes; contents are taken over."""
    graph = contents.graph
    for piece in contents.kept:
        set_state(graph, views_of(contents, piece, places))
    for call in contents.calls:
        layer, name = call.layer.module, call.layer.name
        pieces = contents.pieces[name]
        views = [views_of(contents, piece, places) for piece in pieces]
        tiles = [
            Tile(step, piece.row, view[f"{name}.weight"], view.get(f"{name}.bias"))
            for step, piece, view in zip(call.steps, pieces, views, strict=True)
            if isinstance(layer, FusedConv2d) or len(pieces) > 1
        ]
        gated: nn.Module
        if isinstance(layer, FusedConv2d):
            gated = TiledConv2d(layer, tiles, gate)
        elif len(pieces) > 1:
            gated = TiledLinear(tiles, gate)
        else:
            set_state(graph, views[0])
            assert layer is not None
            gated = StreamedLayer(layer, call.steps[0], gate)
        path = f"streamed_{call.steps[0]}"
        graph.add_module(path, gated)
        call.node.target = path
    graph.delete_all_unused_submodules()
    graph.recompile()
    return graph


def views_of(contents: Contents, piece: Piece, places: Places) -> dict[str, Tensor]:
    """The tensors of a piece, by name, over the memory in which it lies."""
    memory, offset = places[piece.layer, piece.row]
    found = {}
    for each in piece.tensors:
        start = offset + each.offset
        if each.layout in (PLAIN, CHANNELS_LAST):
            values = memory[start : start + each.nbytes].view(DTYPES[each.dtype])
            if each.layout == CHANNELS_LAST:
                n, c, h, w = each.shape
                found[each.name] = values.view(n, h, w, c).permute(0, 3, 1, 2)
            else:
                found[each.name] = values.view(each.shape)
        else:
            found[each.name] = contents.forms[piece.layer, piece.row].view(memory.data_ptr() + start)
    return found
