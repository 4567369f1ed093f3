"""The order of each segment of a flat array, all segments in one sort (§3.1.1, Fig. 2)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.vision_ops.arrays import Integers, to_host
from split_infer_ros.vision_ops.fastest import PLAIN, TRITON, fastest

FEW = 1024  # values on the host up to which numpy costs less than making keys
KEYED = 30_000  # values from which sorting keys, by their digits, is faster than sorting rows by comparing
LARGEST = 2**31 - 1


def segmented_argsort(values: Tensor, offsets: Tensor, *, descending: bool = False) -> Tensor:
    """Places of the values of each segment in their order.

    Of equal values the one that is first stays first, in both directions and on every device; NaN comes last.

    Args:
        values: floating, integer or bool (n,), the segments one after the other.
        offsets: int64 (S + 1,), where each segment starts, and n: ascending from 0. Segments can be empty.
        descending: largest first.

    Returns:
        int64 (n,), places in ``values``; those of a segment stand where the segment is.

    Raises:
        ConfigurationError: shapes that do not fit, or offsets that do not lead from 0 to n.
    """
    lengths = _lengths(values, offsets)
    if not values.is_cuda and len(values) <= KEYED:
        rising = _rising(values, descending)
        if len(lengths) and (lengths == lengths[0]).all():
            return (rising.view(len(lengths), -1).argsort(dim=1, stable=True) + offsets[:-1, None]).flatten()
        if len(values) <= FEW:
            return torch.from_numpy(np.lexsort((to_host(rising), np.arange(len(lengths)).repeat(lengths))))
    segments = torch.arange(len(lengths), device=values.device).repeat_interleave(
        offsets.diff(), output_size=len(values)
    )
    if values.itemsize > 4:
        order = _rising(values, descending).argsort(stable=True)
        return order[segments[order].argsort(stable=True)]
    keys = pack(values, segments, descending)
    if not values.is_cuda:
        return keys.argsort(stable=True)
    forms = {PLAIN: lambda: keys.argsort(stable=True), TRITON: lambda: _by_merging(keys, offsets, segments)}
    return fastest("segmented_argsort", values, [len(values), len(lengths)], forms)


def pack(values: Tensor, segments: Tensor, descending: bool) -> Tensor:
    """One int64 for each value of up to 32 bits, by which segments come in order, and in each of them the values."""
    if values.is_floating_point():
        rising = _rising(values.to(torch.float32), descending) + 0.0  # of two zeros none is less
        bits = rising.view(torch.int32)
        bits = torch.where(bits < 0, bits ^ LARGEST, bits).masked_fill_(values.isnan(), LARGEST)
    else:
        bits = _rising(values, descending)
    return (segments << 32).add_(bits)


def _rising(values: Tensor, descending: bool) -> Tensor:
    """Values whose ascending order, NaN last, is the one that is wanted."""
    if values.is_floating_point():
        return -values if descending else values
    return ~values.to(torch.int64) if descending else values.to(torch.int64)


def _by_merging(keys: Tensor, offsets: Tensor, segments: Tensor) -> Tensor:
    from split_infer_ros.vision_ops.kernels.segmented_argsort import argsort_by_merging  # Triton is optional

    return argsort_by_merging(keys, offsets[segments], offsets[segments + 1])


def _lengths(values: Tensor, offsets: Tensor) -> Integers:
    if values.ndim != 1 or offsets.ndim != 1 or not len(offsets) or offsets.is_floating_point():
        raise ConfigurationError(
            f"values {tuple(values.shape)} and offsets {tuple(offsets.shape)} of {offsets.dtype} do not fit: values "
            f"are (n,), offsets int64 (S + 1,)."
        )
    ends = to_host(offsets)
    lengths: Integers = ends[1:] - ends[:-1]
    if ends[0] != 0 or ends[-1] != len(values) or (lengths < 0).any():
        raise ConfigurationError(
            f"offsets lead from {ends[0]} to {ends[-1]}; they ascend from 0 to {len(values)}, the number of values."
        )
    return lengths
