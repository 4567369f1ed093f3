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
ROWS, SHORT = 2048, 32  # the same of segments of one length: values in all, or in each
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
    count, narrow = values.numel(), values.itemsize <= 4
    given = values.to(torch.float32 if values.is_floating_point() else torch.int64) if narrow else values
    if not values.is_cuda and _are_few_rows(values, offsets):
        rows = rising(to_host(given), descending).reshape(len(offsets) - 1, -1)
        places = rows.argsort(axis=1, kind="stable")
        places += np.arange(0, count, rows.shape[1])[:, None]
        return torch.from_numpy(places.ravel())
    lengths = _lengths(values, offsets)
    if not values.is_cuda and count:
        order = _on_host(to_host(given), lengths, descending, narrow)
        if order is not None:
            return torch.from_numpy(order)
    segments = torch.arange(len(lengths), device=values.device)
    segments = segments.repeat_interleave(offsets.diff(), output_size=count)

    def by_two_sorts() -> Tensor:
        order = rising(given, descending).argsort(stable=True)
        return order[segments[order].argsort(stable=True)]

    if not values.is_cuda or not narrow:
        return by_two_sorts()
    forms = {PLAIN: by_two_sorts, TRITON: lambda: _by_merging(pack(given, segments, descending), offsets, segments)}
    return fastest("segmented_argsort", values, [count, len(lengths)], forms)


def _are_few_rows(values: Tensor, offsets: Tensor) -> bool:
    """Whether segments are of one length, and few or short: the checks and the sort that then cost least will do."""
    count, segments = values.numel(), offsets.numel() - 1
    if values.ndim != 1 or offsets.is_floating_point() or not 0 < segments <= count:
        return False
    if count > max(ROWS, SHORT * segments):
        return False
    return bool(offsets.tolist() == list(range(0, count + 1, count // segments)))


def _on_host(values: npt.NDArray[Any], lengths: Integers, descending: bool, narrow: bool) -> Integers | None:
    """By numpy, whose steps cost least: all values at once, many of them as keys. None if keys have not enough bits."""
    count = len(values)
    segment = np.arange(len(lengths)).repeat(lengths)
    if count <= FEW:
        order: Integers = np.lexsort((rising(values, descending), segment))
        return order
    place_bits = count.bit_length()
    if not narrow or len(lengths).bit_length() + VALUE_BITS + place_bits > KEY_BITS:
        return None
    # with the places in them no two keys are equal, and the fastest sort will do
    keys: Integers = pack(values, segment, descending)
    keys <<= place_bits
    keys += np.arange(count)
    keys.sort()
    keys &= (1 << place_bits) - 1
    return keys


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
    if ends[0] != 0 or ends[-1] != len(values) or (len(lengths) > 1 and lengths.min() < 0):
        raise ConfigurationError(
            f"offsets lead from {ends[0]} to {ends[-1]}; they ascend from 0 to {len(values)}, the number of values."
        )
    return lengths
