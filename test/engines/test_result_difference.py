from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from split_infer_ros.buffers.host_arrays import Values, as_tensor, bfloat16
from split_infer_ros.engines.result_difference import difference

NAN, INF = math.nan, math.inf


Kind = Callable[[npt.NDArray[Any]], Values]
KINDS = pytest.mark.parametrize("kind", [np.asarray, as_tensor], ids=["arrays", "tensors"])


@KINDS
def test_differences_are_relative_to_the_largest_value(kind: Kind) -> None:
    one, other = kind(np.array([10.0, 20.0], np.float32)), kind(np.array([10.5, 20.0], np.float32))
    assert difference([one], [other]) == pytest.approx(0.5 / 20)
    assert difference([one / 100], [other / 100]) < 0.0051, "small values count as they are"
    assert difference([one, other], [one, other]) == 0
    empty = kind(np.empty(0, np.float32))
    assert difference([empty], [empty]) == 0
    assert difference([], []) == 0


def test_an_array_is_compared_with_a_tensor() -> None:
    one, other = np.array([[10.0, 20.0]], np.float32), np.array([[10.5, 20.0]], np.float32)
    assert difference([one], [as_tensor(other)]) == difference([as_tensor(one)], [other]) == pytest.approx(0.5 / 20)


@KINDS
def test_whole_numbers_do_not_wrap_around(kind: Kind) -> None:
    assert difference([kind(np.array([1], np.uint8))], [kind(np.array([2], np.uint8))]) == 0.5
    assert difference([kind(np.array([True]))], [kind(np.array([False]))]) == 1


@KINDS
def test_brain_floats_are_compared_by_value(kind: Kind) -> None:
    one, other = np.array([1.0, 2.0, NAN]).astype(bfloat16()), np.array([1.5, 2.0, NAN]).astype(bfloat16())
    assert difference([kind(one)], [kind(one)]) == 0
    assert difference([kind(one)], [kind(other)]) == 0.25


@pytest.mark.parametrize(
    ("found", "expected", "agree"),
    [
        ([NAN], [1.0], False),
        ([1.0, 2.0], [1.0, NAN], False),
        ([INF], [1.0], False),
        ([1.0, 2.0], [1.0, INF], False),
        ([INF], [-INF], False),
        ([1.0, 9.0], [INF, 1.0], False),
        ([1.0, NAN, INF], [1.0, NAN, INF], True),
    ],
)
@pytest.mark.parametrize("before", [0, 2])
@KINDS
def test_nan_and_infinity_agree_only_if_both_sides_have_them(
    found: list[float], expected: list[float], agree: bool, before: int, kind: Kind
) -> None:
    equal = [kind(np.ones(3, np.float32))] * before
    one, other = kind(np.array(found, np.float32)), kind(np.array(expected, np.float32))
    largest = difference([*equal, one, *equal], [*equal, other, *equal])
    assert largest == 0 if agree else not math.isfinite(largest)
