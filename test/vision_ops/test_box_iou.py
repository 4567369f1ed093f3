"""Overlaps of boxes equal torchvision's to the last bit, for every number that a box can have."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.ops import box_iou as torchvisions

from split_infer_ros.buffers.host_arrays import Floats
from split_infer_ros.vision_ops.box_iou import box_iou, overlaps

SIDES = st.one_of(st.floats(-1e3, 1e3, width=32), st.integers(-5, 5).map(float), st.sampled_from([math.nan, math.inf]))
BOXES = st.lists(st.tuples(SIDES, SIDES, SIDES, SIDES), max_size=9)


def boxes(drawn: list[tuple[float, ...]], dtype: type = np.float32) -> Floats:
    return np.array(drawn, dtype).reshape(-1, 4)


@given(first=BOXES, second=BOXES, dtype=st.sampled_from([np.float32, np.float64]))
def test_overlaps_equal_torchvisions_to_the_last_bit(
    first: list[tuple[float, ...]], second: list[tuple[float, ...]], dtype: type
) -> None:
    """NaN stands at the same places. Boxes may be empty, inverted or infinite."""
    one, other = boxes(first, dtype), boxes(second, dtype)
    expected = torchvisions(torch.from_numpy(one), torch.from_numpy(other)).numpy()
    found = box_iou(one, other)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected, strict=True)


def test_overlaps_of_boxes_are_counted_by_hand() -> None:
    found = box_iou(boxes([(0, 0, 2, 2), (0, 0, 4, 4)]), boxes([(0, 0, 2, 2), (1, 1, 3, 3), (9, 9, 9, 9)]))
    np.testing.assert_allclose(found, [[1, 1 / 7, 0], [1 / 4, 1 / 4, 0]], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_threshold_is_compared_without_rounding_it(dtype: type) -> None:
    one, other = boxes([(0, 0, 10, 1)], dtype).T, boxes([(0, 0, 3, 1)], dtype).T
    share = float(one.dtype.type(3) / one.dtype.type(10))
    assert overlaps(one, other, math.nextafter(share, 0)).all()
    assert not overlaps(one, other, share).any()


def test_a_box_without_a_number_overlaps_nothing() -> None:
    bad = boxes([(math.nan, 0, 1, 1), (-math.inf, 0, math.inf, 1)]).T
    assert not overlaps(bad[:, :, None], bad[:, None], 0.0).any()
