"""The order of each segment of a flat array, all segments in one sort (§3.1.1, Fig. 2)."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.vision_ops.arrays import Integers, to_host
from split_infer_ros.vision_ops.fastest import PLAIN, TRITON, fastest

FEW = 512  # values up to which keys are not worth making
SHORT = 32  # values in each of segments of one length, up to which they are not either: rows can be sorted
VALUE_BITS, KEY_BITS = 32, 63
LARGEST = 2**31 - 1
FLOATING = (torch.float32, torch.float64, np.float32, np.float64)
Values = TypeVar("Values", Tensor, npt.NDArray[Any])  # on a device, or on the host


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
    count, narrow = len(values), values.itemsize <= 4
    place_bits = count.bit_length()
    given = values.to(torch.float32 if values.is_floating_point() else torch.int64) if narrow else values
    if not values.is_cuda and count:
        if FEW < count <= SHORT * len(lengths) and (lengths == lengths[0]).all():
            order = rising(given, descending).view(len(lengths), -1).argsort(dim=1, stable=True)
            return (order + offsets[:-1, None]).flatten()
        segment = np.arange(len(lengths)).repeat(lengths)
        if count <= FEW:
            return torch.from_numpy(np.lexsort((rising(to_host(given), descending), segment)))
        if narrow and len(lengths).bit_length() + VALUE_BITS + place_bits <= KEY_BITS:
            # with the places in them no two keys are equal, and the fastest sort will do
            keys = (pack(to_host(given), segment, descending) << place_bits) + np.arange(count)
            keys.sort()
            return torch.from_numpy(keys & ((1 << place_bits) - 1))
    segments = torch.arange(len(lengths), device=values.device)
    segments = segments.repeat_interleave(offsets.diff(), output_size=count)

    def by_two_sorts() -> Tensor:
        order = rising(given, descending).argsort(stable=True)
        return order[segments[order].argsort(stable=True)]

    if not values.is_cuda or not narrow:
        return by_two_sorts()
    forms = {PLAIN: by_two_sorts, TRITON: lambda: _by_merging(pack(given, segments, descending), offsets, segments)}
    return fastest("segmented_argsort", values, [count, len(lengths)], forms)


def pack(values: Values, segments: Values, descending: bool) -> Values:
    """One int64 for each value, by which segments come in order, and in each of them the values: NaN last.

    Args:
        values: float32, or int64 of no more than 32 bits.
        segments: int64, that of each value.
        descending: largest first.
    """
    bits = rising(values, descending)
    if values.dtype in FLOATING:
        bits = bits.view(np.int32 if isinstance(values, np.ndarray) else torch.int32)
        bits = bits ^ ((bits >> 31) & LARGEST)
        bits[values != values] = LARGEST
    keys: Values = (segments << VALUE_BITS) + bits
    return keys


def rising(values: Values, descending: bool) -> Values:
    """Values, floating ones of 32 or 64 bits, whose ascending order, NaN last, is the one that is wanted."""
    if values.dtype in FLOATING:
        return 0.0 - values if descending else values + 0.0  # of two zeros none is less
    return ~values if descending else values


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
    if ends[0] != 0 or ends[-1] != len(values) or lengths.min(initial=0) < 0:
        raise ConfigurationError(
            f"offsets lead from {ends[0]} to {ends[-1]}; they ascend from 0 to {len(values)}, the number of values."
        )
    return lengths
