"""Selects scores above a threshold on the device and keeps their order.

It uses a prefix sum (paper 004, §3.1.1, Fig. 3). The host does not know how many scores are selected. The results
therefore have room for all scores.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from split_infer_ros.vision_ops.kernels.prefix_sum import sum_in_stages
from split_infer_ros.vision_ops.kernels.segmented_argsort import argsort_by_merging

BLOCK = 1024  # scores of a row that one program looks at
CHUNK = 128  # best scores of a row that one program writes


class Selected(NamedTuple):
    """The selected scores of R rows with n scores each. The scores of a row lie together, row after row.

    ``offsets[R]`` scores are selected. The elements of ``keys`` and ``places`` behind them are undefined.

    Attributes:
        keys: int64 (R * n,), a sort key for each selected score. Ascending keys sort by row, then from the best score
            of a row to its worst.
        places: int32 (R * n,), the index of each selected score in its row.
        offsets: int64 (R + 1,). Row r has the elements from ``offsets[r]`` to ``offsets[r + 1]`` of the others.
    """

    keys: Tensor
    places: Tensor
    offsets: Tensor


def select_above(scores: Tensor, threshold: float, block: int = BLOCK) -> Selected:
    """Returns the scores above a threshold. NaN is never selected.

    The up-sweep counts the selected scores in each block. The scan adds the counts up. The down-sweep writes each
    selected score behind the selected scores before it.

    Args:
        scores: float32 (R, n), contiguous, R and n at least 1.
        threshold: scores above this are selected. It is rounded to float32.
        block: how many scores one program of the kernel looks at, a power of two.
    """
    rows, length = scores.shape
    blocks = triton.cdiv(length, block)
    counts = torch.empty((rows, blocks), dtype=torch.int64, device=scores.device)
    _count[(rows, blocks)](scores, counts, length, blocks, float(threshold), BLOCK=block)
    ends = sum_in_stages(counts.flatten())
    offsets = torch.zeros(rows + 1, dtype=torch.int64, device=scores.device)
    offsets[1:] = ends.view(rows, blocks)[:, -1]
    keys = torch.empty(rows * length, dtype=torch.int64, device=scores.device)
    places = torch.empty(rows * length, dtype=torch.int32, device=scores.device)
    _write[(rows, blocks)](scores, ends, keys, places, length, blocks, float(threshold), BLOCK=block)
    return Selected(keys, places, offsets)


def keep_best(scores: Tensor, count: int, threshold: float) -> Tensor:
    """Returns a copy of the scores, (R, n), that keeps the best scores of each row. All others become -inf.

    If scores are equal, the first of them are kept.

    Args:
        scores: float32 (R, n), contiguous, R and n at least 1.
        count: how many scores of each row are kept.
        threshold: scores that are not above this become -inf as well.
    """
    rows, length = scores.shape
    selected = select_above(scores, threshold)
    order = argsort_by_merging(selected.keys, selected.offsets)
    best = torch.full_like(scores, -math.inf)
    grid = (rows, triton.cdiv(min(count, length), CHUNK))
    _copy_best[grid](scores, best, selected.places, order, selected.offsets, length, count, CHUNK=CHUNK)
    return best


@triton.jit
def _count(scores, counts, length, blocks, threshold, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(scores + row * length + place, mask=place < length, other=float("-inf"))
    selected = (score > threshold) & (place < length)
    tl.store(counts + row * blocks + block, tl.sum(selected.to(tl.int32), 0).to(tl.int64))


@triton.jit
def _write(scores, ends, keys, places, length, blocks, threshold, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(scores + row * length + place, mask=place < length, other=float("-inf"))
    selected = (score > threshold) & (place < length)
    number = row * blocks + block
    before = tl.where(number > 0, tl.load(ends + tl.maximum(number - 1, 0)), 0)
    target = before + tl.cumsum(selected.to(tl.int32), 0) - 1
    bits = (0.0 - score).to(tl.int32, bitcast=True)  # 0.0 - makes -0.0 equal to 0.0, and descending ascending
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # integers in the order of the floating numbers
    tl.store(keys + target, (row << 32) + bits.to(tl.int64), mask=selected)
    tl.store(places + target, place, mask=selected)


@triton.jit
def _copy_best(scores, best, places, order, offsets, length, count, CHUNK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(offsets + row), tl.load(offsets + row + 1)
    rank = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = (begin + rank < end) & (rank < count)
    place = tl.load(places + tl.load(order + begin + rank, mask=inside, other=0), mask=inside, other=0)
    score = tl.load(scores + row * length + place, mask=inside, other=0.0)
    tl.store(best + row * length + place, score, mask=inside)
