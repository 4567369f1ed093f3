"""Segmented sorting by blocks that are merged two by two (§3.1.1, Fig. 2)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128  # keys that one program sorts by comparing each with each
CHUNK = 512  # keys that one program moves in a merge


def argsort_by_merging(keys: Tensor, starts: Tensor, ends: Tensor, block: int = BLOCK) -> Tensor:
    """Returns the stable order of the keys: int64 (n,).

    The flat array is divided into blocks of one size, regardless of where segments end. Each pass merges pairs of
    blocks, which doubles the length of the sorted runs. A pass writes all keys and their places into other memory. Only
    keys of a segment that crosses the border between two blocks change their place.

    Args:
        keys: int64 (n,); the keys of a later segment are larger.
        starts: int64 (n,), where the segment of each key starts.
        ends: int64 (n,), where the segment of each key ends.
        block: keys of a block of the first sort, a power of two.
    """
    count = len(keys)
    order = torch.empty_like(keys)
    if not count:
        return order
    ordered = torch.empty_like(keys)
    _sort_blocks[(triton.cdiv(count, block),)](keys, ordered, order, count, BLOCK=block)
    spare_keys, spare_order = torch.empty_like(keys), torch.empty_like(keys)
    width = block
    while width < count:
        _merge[(triton.cdiv(count, CHUNK),)](
            ordered,
            order,
            spare_keys,
            spare_order,
            starts,
            ends,
            count,
            width,
            width.bit_length(),
            CHUNK=CHUNK,
        )
        ordered, spare_keys, order, spare_order = spare_keys, ordered, spare_order, order
        width *= 2
    return order


@triton.jit
def _sort_blocks(keys, ordered, order, count, BLOCK: tl.constexpr):
    """Places each key behind as many keys as precede it. Threads only compare, so they never diverge."""
    begin = tl.program_id(0) * BLOCK
    index = tl.arange(0, BLOCK)
    key = tl.load(keys + begin + index, mask=begin + index < count, other=0x7FFFFFFFFFFFFFFF)
    mine, others = key[:, None], key[None, :]
    before = (others < mine) | ((others == mine) & (index[None, :] < index[:, None]))
    place = begin + tl.sum(before.to(tl.int32), 1)
    inside = begin + index < count
    tl.store(ordered + place, key, mask=inside)
    tl.store(order + place, (begin + index).to(tl.int64), mask=inside)


@triton.jit
def _merge(
    keys,
    order,
    new_keys,
    new_order,
    starts,
    ends,
    count,
    width,
    steps,
    CHUNK: tl.constexpr,
):
    """Moves each key by the number of keys that pass it, found by a binary search in the other block of its pair."""
    place = (tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)).to(tl.int64)
    inside = place < count
    key = tl.load(keys + place, mask=inside, other=0)
    begin = place // (2 * width) * (2 * width)
    border = begin + width
    left = place < border
    # The range of the same segment beyond the border. For most keys it is empty.
    low = tl.where(left, border, tl.maximum(begin, tl.load(starts + place, mask=inside, other=0)))
    high = tl.where(left, tl.minimum(begin + 2 * width, tl.load(ends + place, mask=inside, other=0)), border)
    low = tl.where(left, low, tl.minimum(low, border))
    high = tl.maximum(high, low)
    first = low
    for _ in range(steps):
        middle = (low + high) // 2
        searching = inside & (low < high)
        other = tl.load(keys + middle, mask=searching, other=0)
        passes = tl.where(left, other < key, other <= key) & searching
        low = tl.where(passes, middle + 1, low)
        high = tl.where(searching & (passes == 0), middle, high)
    moved = tl.where(left, place + (low - first), place - (border - low))
    tl.store(new_keys + moved, key, mask=inside)
    tl.store(new_order + moved, tl.load(order + place, mask=inside, other=0), mask=inside)
