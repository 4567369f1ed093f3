"""Where weights lie in a circular buffer, planned once for every pass (paper, asynchronous pipeline).

Each pass runs the same layers in the same order, so the plan is periodic: a layer has the same address in every pass,
and views of it are made once. It is read in portions, each as soon as what lay in its place is no longer needed; so
while the end of one pass runs, the beginning of the next one is read. Pure: sizes in, offsets out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from split_infer_ros.weight_streaming.packed_file import PAGE, pages

CHUNK = 5 << 20  # bytes of a portion: more are read hardly faster, and fewer are read noticeably slower
NONE = -1  # block of a step whose weights stay in memory


@dataclass(frozen=True, slots=True)
class Portion:
    """What is read at once: part ``start`` to ``start + nbytes`` of a block."""

    block: int
    start: int
    nbytes: int
    last: bool


@dataclass(frozen=True, slots=True)
class RingPlan:
    """A period of the ring.

    Attributes:
        capacity: bytes.
        offsets: of each block.
        portions: in the order of reading.
        window: for each portion, how many of those just before it may still be in use while it is read.
        needs: for each step, how many portions must have been read.
        frees: for each step, how many portions are no longer needed after it.
    """

    capacity: int
    offsets: tuple[int, ...]
    portions: tuple[Portion, ...]
    window: tuple[int, ...]
    needs: tuple[int, ...]
    frees: tuple[int, ...]

    @property
    def feasible(self) -> bool:
        """False if a step would wait for weights that lie where others are still needed."""
        freed, checked = 0, 0
        for need, after in zip(self.needs, self.frees, strict=True):
            if any(index - self.window[index] > freed for index in range(checked, need)):
                return False
            checked, freed = max(checked, need), after
        return True


def circular(sizes: Sequence[int], uses: Sequence[int], capacity: int, chunk: int = CHUNK) -> RingPlan:
    """Blocks one behind the other, and from the front again where the next one would not fit.

    Args:
        sizes: of the blocks, bytes, in the order in which they are first used.
        uses: for each step the block that it reads, or NONE.
        capacity: of the ring, bytes; at least the largest block's.
        chunk: bytes of a portion.
    """
    offsets, end = [], 0
    for size in map(pages, sizes):
        if end + size > capacity:
            end = 0
        offsets.append(end)
        end += size
    return _plan(capacity, offsets, sizes, uses, chunk)


def double_buffered(sizes: Sequence[int], uses: Sequence[int], chunk: int | None = None) -> RingPlan:
    """Two partitions in turns: one is read, whole or in portions, while the other is used (synchronous pipeline)."""
    partition = pages(max(sizes, default=0))
    offsets = [index % 2 * partition for index in range(len(sizes))]
    return _plan(2 * partition, offsets, sizes, uses, chunk or max(partition, PAGE))


def window_after(previous: RingPlan, plan: RingPlan) -> tuple[int, ...]:
    """A plan's window in a pass behind one of another partition that shares the ring."""
    if previous is plan:
        return plan.window
    return tuple(_windows(*(_places(each.offsets, each.portions) for each in (previous, plan))))


def least_capacity(sizes: Sequence[int], uses: Sequence[int]) -> int:
    """Bytes of the smallest ring in which every step gets what it needs: the largest block's, unless some are shared.

    It is looked for in steps of a fiftieth; with a place of its own for each block there is no more to wait for.
    """
    capacity = pages(max(sizes, default=0))
    while not circular(sizes, uses, capacity).feasible:
        capacity = min(pages(capacity + capacity // 50), sum(map(pages, sizes)))
    return capacity


def _plan(capacity: int, offsets: Sequence[int], sizes: Sequence[int], uses: Sequence[int], chunk: int) -> RingPlan:
    portions = tuple(portion for block, size in enumerate(sizes) for portion in _portions(block, pages(size), chunk))
    places = _places(offsets, portions)
    ends = [0] * len(sizes)  # of each block: how many portions there are up to it
    for index, portion in enumerate(portions):
        ends[portion.block] = index + 1
    last_use = [-1] * len(sizes)
    for step, block in enumerate(uses):
        if block != NONE:
            last_use[block] = step
    needs, frees, need, free = [], [], 0, 0
    for step, block in enumerate(uses):
        if block != NONE:
            need = max(need, ends[block])
        needs.append(need)
        while free < len(sizes) and last_use[free] <= step:
            free += 1
        frees.append(ends[free - 1] if free else 0)
    window = tuple(_windows(places, places))
    return RingPlan(capacity, tuple(offsets), portions, window, tuple(needs), tuple(frees))


def _portions(block: int, size: int, chunk: int) -> Iterator[Portion]:
    for start in range(0, size, chunk):
        nbytes = min(chunk, size - start)
        yield Portion(block, start, nbytes, start + nbytes == size)


def _places(offsets: Sequence[int], portions: Sequence[Portion]) -> list[tuple[int, int]]:
    return [(offsets[p.block] + p.start, offsets[p.block] + p.start + p.nbytes) for p in portions]


def _windows(before: Sequence[tuple[int, int]], places: Sequence[tuple[int, int]]) -> Iterator[int]:
    """For each place, how many just before it leave it alone, back to the beginning of those before all."""
    order = [*before, *places]
    for index, (start, end) in enumerate(places, len(before)):
        clear = 0
        while clear < index:
            other_start, other_end = order[index - clear - 1]
            if other_start < end and start < other_end:
                break
            clear += 1
        yield clear
