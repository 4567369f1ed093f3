"""The order of each segment of a flat array, all segments in one sort (§3.1.1, Fig. 2).

No frame passes through this function. On a GPU, ``box_nms`` sorts by the same kernels.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from split_infer_ros.buffers.host_arrays import Integers, to_host
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.vision_ops.implementations import ImplementationChoice, run_fastest

MAX_LEXSORT = 512  # values, up to which numpy's lexsort costs less than making keys
MAX_ROWS_VALUES = 2048  # values of segments of equal length, up to which they are sorted as rows of an array
MAX_ROW_LENGTH = 32  # of segments of equal length, up to which any number of them are sorted as rows
VALUE_BITS, KEY_BITS = 32, 63
INT32_MAX = 2**31 - 1
FLOATING_DTYPES = (torch.float32, torch.float64, np.float32, np.float64)
Values = TypeVar("Values", Tensor, npt.NDArray[Any])  # on a device, or on the host


def segmented_argsort(values: Tensor, offsets: Tensor, *, descending: bool = False) -> Tensor:
    """Returns, segment by segment, the places of the values in sorted order.

    Equal values keep their order, in both directions and on every device. NaN comes last.

    Args:
        values: floating, integer or bool (n,), one segment behind the other.
        offsets: int64 (S + 1,), the start of each segment, and then n. They ascend from 0. A segment can be empty.
        descending: whether the largest value comes first.

    Returns:
        int64 (n,), places in ``values``. The places of a segment stand where the segment stands.

    Raises:
        ConfigurationError: the shapes do not fit, or the offsets do not lead from 0 to n.
    """
    count, is_narrow = values.numel(), values.itemsize <= 4
    narrow_dtype = torch.float32 if values.is_floating_point() else torch.int64
    sortable = values.to(narrow_dtype) if is_narrow else values
    if not values.is_cuda and _are_short_rows(values, offsets):
        rows = with_ascending_order(to_host(sortable), descending).reshape(len(offsets) - 1, -1)
        places = rows.argsort(axis=1, kind="stable")
        places += np.arange(0, count, rows.shape[1])[:, None]
        return torch.from_numpy(places.ravel())
    lengths = _lengths(values, offsets)
    if not values.is_cuda and count:
        order = _argsort_on_host(to_host(sortable), lengths, descending, is_narrow)
        if order is not None:
            return torch.from_numpy(order)
    segments = torch.arange(len(lengths), device=values.device)
    segments = segments.repeat_interleave(offsets.diff(), output_size=count)

    def by_two_sorts() -> Tensor:
        order = with_ascending_order(sortable, descending).argsort(stable=True)
        return order[segments[order].argsort(stable=True)]

    if not values.is_cuda or not is_narrow:
        return by_two_sorts()
    implementations = {
        ImplementationChoice.PLAIN: by_two_sorts,
        ImplementationChoice.TRITON: lambda: _by_merging(pack(sortable, segments, descending), offsets),
    }
    return run_fastest("segmented_argsort", values, [count, len(lengths)], implementations)


def _are_short_rows(values: Tensor, offsets: Tensor) -> bool:
    """Whether all segments have one length, and are so few or so short that sorting them as rows costs least."""
    count, segments = values.numel(), offsets.numel() - 1
    if values.ndim != 1 or offsets.is_floating_point() or not 0 < segments <= count:
        return False
    if count > max(MAX_ROWS_VALUES, MAX_ROW_LENGTH * segments):
        return False
    return bool(offsets.tolist() == list(range(0, count + 1, count // segments)))


def _argsort_on_host(values: npt.NDArray[Any], lengths: Integers, descending: bool, is_narrow: bool) -> Integers | None:
    """Sorts all segments at once by numpy, whose steps cost least; None if 63-bit keys cannot hold them.

    Many values are sorted as keys of segment, value and place. Such keys are all different, so the fastest sort works.
    """
    count = len(values)
    segment = np.arange(len(lengths)).repeat(lengths)
    if count <= MAX_LEXSORT:
        order: Integers = np.lexsort((with_ascending_order(values, descending), segment))
        return order
    place_bits = count.bit_length()
    if not is_narrow or len(lengths).bit_length() + VALUE_BITS + place_bits > KEY_BITS:
        return None
    keys: Integers = pack(values, segment, descending)
    keys <<= place_bits
    keys += np.arange(count)
    keys.sort()
    keys &= (1 << place_bits) - 1
    return keys


def pack(values: Values, segments: Values, descending: bool) -> Values:
    """Returns one int64 key for each value. Sorted keys order segments, and values within each segment, NaN last.

    Args:
        values: float32, or int64 of at most 32 bits.
        segments: int64, the segment of each value.
        descending: whether the largest value comes first.
    """
    bits = with_ascending_order(values, descending)
    if values.dtype in FLOATING_DTYPES:
        bits = bits.view(np.int32 if isinstance(values, np.ndarray) else torch.int32)
        bits = bits ^ ((bits >> 31) & INT32_MAX)
        bits[values != values] = INT32_MAX
    keys: Values = (segments << VALUE_BITS) + bits
    return keys


def with_ascending_order(values: Values, descending: bool) -> Values:
    """Returns values whose ascending order, NaN last, is the requested order of ``values``.

    Floating values have 32 or 64 bits.
    """
    if values.dtype in FLOATING_DTYPES:
        return 0.0 - values if descending else values + 0.0  # which also makes -0.0 equal to 0.0
    return ~values if descending else values


def _by_merging(keys: Tensor, offsets: Tensor) -> Tensor:
    from split_infer_ros.vision_ops.kernels.segmented_argsort import argsort_by_merging  # Triton is optional

    return argsort_by_merging(keys, offsets)


def _lengths(values: Tensor, offsets: Tensor) -> Integers:
    """Returns the length of each segment and refuses offsets that do not divide the values."""
    if values.ndim != 1 or offsets.ndim != 1 or not len(offsets) or offsets.is_floating_point():
        raise ConfigurationError(
            f"values {tuple(values.shape)} and offsets {tuple(offsets.shape)} of {offsets.dtype} do not fit: values "
            f"are (n,), offsets int64 (S + 1,)."
        )
    ends = to_host(offsets)
    lengths: Integers = ends[1:] - ends[:-1]
    if ends[0] != 0 or ends[-1] != len(values) or (len(lengths) > 1 and lengths.min() < 0):
        raise ConfigurationError(
            f"offsets lead from {ends[0]} to {ends[-1]}; they must ascend from 0 to {len(values)}, the number of "
            "values."
        )
    return lengths
