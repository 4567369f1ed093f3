"""Plans where weights lie in a ring buffer. One plan serves every pass (paper 002: asynchronous pipeline).

Each pass runs the same layers in the same order, so the plan is periodic. A layer's weights have the same address in
every pass, and their tensors are created once. Weights are read in chunks. A chunk is read once no layer needs the
weights in its place any more. The end of one pass therefore overlaps with reading for the next. The module is pure:
sizes in, offsets out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from split_infer_ros.weight_streaming.packed_header import PAGE, round_up_to_pages

CHUNK_BYTES = 5 << 20  # larger reads are hardly faster, smaller ones are noticeably slower
NO_BLOCK = -1  # stands for the block of a step that reads resident weights


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a block that one read fetches.

    Attributes:
        block: the index of the block.
        start: offset of the part in the block, in bytes.
        nbytes: size of the part, in bytes.
        is_last: whether the block ends with this chunk.
    """

    block: int
    start: int
    nbytes: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class RingPlan:
    """The places of all blocks in a ring buffer, and the order in which they are read.

    Attributes:
        capacity: bytes of the ring.
        offsets: offset of each block in the ring.
        chunks: the chunks, in the order of reading.
        window: for each chunk, how many of the chunks just before it may still be in use while it is read.
        chunks_needed: for each step, how many chunks must have been read before it runs.
        chunks_freed: for each step, how many chunks are no longer needed after it.
    """

    capacity: int
    offsets: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    window: tuple[int, ...]
    chunks_needed: tuple[int, ...]
    chunks_freed: tuple[int, ...]

    @property
    def is_feasible(self) -> bool:
        """False if a step would wait forever: for weights whose place holds other weights that are still needed."""
        freed, checked = 0, 0
        for needed, freed_after in zip(self.chunks_needed, self.chunks_freed, strict=True):
            if any(index - self.window[index] > freed for index in range(checked, needed)):
                return False
            checked, freed = max(checked, needed), freed_after
        return True


def plan_ring(
    block_sizes: Sequence[int], step_blocks: Sequence[int], capacity: int, *, chunk_bytes: int = CHUNK_BYTES
) -> RingPlan:
    """Places blocks one after the other. A block that does not fit before the ring's end goes to its start.

    Args:
        block_sizes: bytes of each block, in the order of first use.
        step_blocks: for each step the block that it reads, or ``NO_BLOCK``.
        capacity: bytes of the ring; at least the largest block.
        chunk_bytes: the most bytes of one read.

    Returns:
        The plan. A step may wait forever with it; see ``RingPlan.is_feasible``.
    """
    offsets, end = [], 0
    for size in map(round_up_to_pages, block_sizes):
        if end + size > capacity:
            end = 0
        offsets.append(end)
        end += size
    return _plan(capacity, offsets, block_sizes, step_blocks, chunk_bytes)


def plan_double_buffer(
    block_sizes: Sequence[int], step_blocks: Sequence[int], *, chunk_bytes: int | None = None
) -> RingPlan:
    """Places blocks in two buffers in turns. The disk fills one while layers use the other (synchronous pipeline).

    Args:
        block_sizes: as for ``plan_ring``.
        step_blocks: as for ``plan_ring``.
        chunk_bytes: the most bytes of one read; None reads each block at once.
    """
    buffer_bytes = round_up_to_pages(max(block_sizes, default=0))
    offsets = [index % 2 * buffer_bytes for index in range(len(block_sizes))]
    return _plan(2 * buffer_bytes, offsets, block_sizes, step_blocks, chunk_bytes or max(buffer_bytes, PAGE))


def runs_block_by_block(step_blocks: Sequence[int]) -> bool:
    """True if no step uses a block again after another step used a later block."""
    return all(first <= second for first, second in pairwise(block for block in step_blocks if block != NO_BLOCK))


def window_after(previous: RingPlan, plan: RingPlan) -> tuple[int, ...]:
    """Returns ``RingPlan.window`` of ``plan`` for a pass that follows a pass with ``previous`` in the same ring."""
    if previous is plan:
        return plan.window
    return tuple(_windows(_places(previous.offsets, previous.chunks), _places(plan.offsets, plan.chunks)))


def min_capacity(block_sizes: Sequence[int], step_blocks: Sequence[int]) -> int:
    """Returns the bytes of the smallest ring with a feasible plan.

    That is the size of the largest block if ``runs_block_by_block``. Otherwise, the search makes the ring a fiftieth
    larger each time. The search ends at the latest when the ring has room for all blocks.
    """
    capacity = round_up_to_pages(max(block_sizes, default=0))
    while not plan_ring(block_sizes, step_blocks, capacity).is_feasible:
        capacity = min(round_up_to_pages(capacity + capacity // 50), sum(map(round_up_to_pages, block_sizes)))
    return capacity


def _plan(
    capacity: int, offsets: Sequence[int], block_sizes: Sequence[int], step_blocks: Sequence[int], chunk_bytes: int
) -> RingPlan:
    chunks = tuple(
        chunk
        for block, size in enumerate(block_sizes)
        for chunk in _chunks(block, round_up_to_pages(size), chunk_bytes)
    )
    places = _places(offsets, chunks)
    block_ends = [0] * len(block_sizes)  # for each block, the number of chunks up to its end
    for index, chunk in enumerate(chunks):
        block_ends[chunk.block] = index + 1
    last_use = [-1] * len(block_sizes)
    for step, block in enumerate(step_blocks):
        if block != NO_BLOCK:
            last_use[block] = step
    chunks_needed, chunks_freed = [], []
    needed, freed_blocks = 0, 0
    for step, block in enumerate(step_blocks):
        if block != NO_BLOCK:
            needed = max(needed, block_ends[block])
        chunks_needed.append(needed)
        while freed_blocks < len(block_sizes) and last_use[freed_blocks] <= step:
            freed_blocks += 1
        chunks_freed.append(block_ends[freed_blocks - 1] if freed_blocks else 0)
    return RingPlan(
        capacity=capacity,
        offsets=tuple(offsets),
        chunks=chunks,
        window=tuple(_windows(places, places)),
        chunks_needed=tuple(chunks_needed),
        chunks_freed=tuple(chunks_freed),
    )


def _chunks(block: int, size: int, chunk_bytes: int) -> Iterator[Chunk]:
    for start in range(0, size, chunk_bytes):
        nbytes = min(chunk_bytes, size - start)
        yield Chunk(block=block, start=start, nbytes=nbytes, is_last=start + nbytes == size)


def _places(offsets: Sequence[int], chunks: Sequence[Chunk]) -> list[tuple[int, int]]:
    starts = [offsets[chunk.block] + chunk.start for chunk in chunks]
    return [(start, start + chunk.nbytes) for start, chunk in zip(starts, chunks, strict=True)]


def _windows(previous: Sequence[tuple[int, int]], places: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Counts for each place how many places just before it do not overlap it, back to the start of ``previous``."""
    order = [*previous, *places]
    for index, (start, end) in enumerate(places, len(previous)):
        clear = 0
        while clear < index:
            other_start, other_end = order[index - clear - 1]
            if other_start < end and start < other_end:
                break
            clear += 1
        yield clear
