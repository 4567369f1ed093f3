"""Sorts each segment of an array by itself, by blocks that are merged two by two (paper 004, §3.1.1, Fig. 2)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128  # keys that one program sorts by comparing each with each
CHUNK = 512  # keys that one program moves in a merge


def argsort_by_merging(keys: Tensor, offsets: Tensor, block: int = BLOCK) -> Tensor:
    """Returns the indices that sort the keys. Equal keys keep their order.

    The flat array is divided into blocks of one size, regardless of where segments end. Each pass merges pairs of
    blocks, which doubles the length of the sorted runs. Only keys of a segment that crosses the border between two
    blocks change their place. But every pass writes all keys and their places into other memory, also those that stay
    where they are. So a pass costs the same however many segments cross a border.

    Args:
        keys: int64 (n,), ``segment << 32`` plus a number of 32 bits with its sign. They are overwritten.
        offsets: int64 (S + 1,) for S segments: the start of each segment, and at the end the number of keys, which n
            may exceed. The kernels read that number on the device.
        block: how many keys a block of the first sort has, a power of two.

    Returns:
        int64 (n,). The elements behind the last segment are undefined.
    """
    order = torch.empty_like(keys)
    if not len(keys):
        return order
    ordered, spare_keys, spare_order = torch.empty_like(keys), keys, torch.empty_like(keys)
    count = offsets[-1:]
    _sort_blocks[(triton.cdiv(len(keys), block),)](keys, ordered, order, count, BLOCK=block)
    width = block
    while width < len(keys):
        _merge[(triton.cdiv(len(keys), CHUNK),)](
            ordered, order, spare_keys, spare_order, offsets, count, width, width.bit_length(), CHUNK=CHUNK
        )
        ordered, spare_keys, order, spare_order = spare_keys, ordered, spare_order, order
        width *= 2
    return order


@triton.jit
def _sort_blocks(keys, ordered, order, count, BLOCK: tl.constexpr):
    """Places each key behind the keys that precede it. Threads only compare, so they never diverge."""
    begin = tl.program_id(0) * BLOCK
    total = tl.load(count)
    if begin >= total:
        return
    index = tl.arange(0, BLOCK)
    inside = begin + index < total
    key = tl.load(keys + begin + index, mask=inside, other=0x7FFFFFFFFFFFFFFF)
    mine, others = key[:, None], key[None, :]
    before = (others < mine) | ((others == mine) & (index[None, :] < index[:, None]))
    place = begin + tl.sum(before.to(tl.int32), 1)
    tl.store(ordered + place, key, mask=inside)
    tl.store(order + place, (begin + index).to(tl.int64), mask=inside)


@triton.jit
def _merge(keys, order, new_keys, new_order, offsets, count, width, steps, CHUNK: tl.constexpr):
    """Moves each key by the number of keys that pass it, found by a binary search in the other block of its pair."""
    first_place = tl.program_id(0) * CHUNK
    total = tl.load(count)
    if first_place >= total:
        return
    place = (first_place + tl.arange(0, CHUNK)).to(tl.int64)
    inside = place < total
    key = tl.load(keys + place, mask=inside, other=0)
    segment = (key + 0x80000000) >> 32
    start = tl.load(offsets + segment, mask=inside, other=0)
    end = tl.load(offsets + segment + 1, mask=inside, other=0)
    begin = place // (2 * width) * (2 * width)
    border = begin + width
    left = place < border
    # The range of the same segment beyond the border. For most keys it is empty.
    low = tl.where(left, border, tl.minimum(tl.maximum(begin, start), border))
    high = tl.maximum(low, tl.where(left, tl.minimum(begin + 2 * width, end), border))
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
