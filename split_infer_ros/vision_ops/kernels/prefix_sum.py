"""Prefix sums in three stages: up-sweep, scan, down-sweep (paper 004, §3.1.1, Fig. 3)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # values of a row that one program sums; each thread holds many of them in its registers


def sum_in_stages(values: Tensor, block: int = BLOCK) -> Tensor:
    """Returns, for each value of a row, the sum of the row up to and including that value.

    The up-sweep sums each block by itself. The scan sums the blocks' totals in the same way. The down-sweep adds to
    each block the total of the blocks before it. So no block waits for another one within a stage. Sums of int64 are
    exact and wrap around. Sums of float32 are added in another order than by torch, so their last bits can differ.

    Args:
        values: float32 or int64 (..., n), each dimension 1 or more.
        block: values that one program sums, a power of two.

    Returns:
        (..., n), of the same type.
    """
    rows = values.contiguous().flatten(0, -2) if values.ndim > 1 else values.contiguous().unsqueeze(0)
    length = rows.shape[1]
    blocks = triton.cdiv(length, block)
    sums = torch.empty_like(rows)
    totals = torch.empty((len(rows), blocks), dtype=rows.dtype, device=rows.device)
    grid = (len(rows), blocks)
    _up_sweep[grid](rows, sums, totals, length, blocks, BLOCK=block)
    if blocks > 1:
        _down_sweep[grid](sums, sum_in_stages(totals, block), length, blocks, BLOCK=block)
    return sums.view_as(values)


@triton.jit
def _up_sweep(values, sums, totals, length, blocks, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + row * length + place, mask=place < length, other=0)
    tl.store(sums + row * length + place, tl.cumsum(value, 0), mask=place < length)
    tl.store(totals + row * blocks + block, tl.sum(value, 0))


@triton.jit
def _down_sweep(sums, before, length, blocks, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    inside = place < length
    total = tl.where(block > 0, tl.load(before + row * blocks + tl.maximum(block - 1, 0)), 0)
    value = tl.load(sums + row * length + place, mask=inside, other=0)
    tl.store(sums + row * length + place, value + total, mask=inside)
