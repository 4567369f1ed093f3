"""Conversions between memory formats, as the graph tuner counts them."""

from __future__ import annotations

import itertools

import pytest

from split_infer_ros.autotuning.graph_tuner import SegmentTimes, conversion_s
from split_infer_ros.autotuning.memory_formats import MemoryFormat, format_of, needs_conversion
from split_infer_ros.engines.execution_config import Convolutions


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Convolutions, Convolutions)))
@pytest.mark.parametrize("given", MemoryFormat)
def test_conversions_are_counted_between_all_kinds(
    before: Convolutions, after: Convolutions, given: MemoryFormat
) -> None:
    # whatever the kinds are, what counts is the format that one gives and the other takes
    times = {kind.value: SegmentTimes([1.0, 1.0], [7.0, 0.25], [given, MemoryFormat.MIXED]) for kind in Convolutions}
    is_converted = before is not after and given not in (format_of(after), MemoryFormat.ANY)
    assert conversion_s(times, 1, before.value, after.value) == (0.25 if is_converted else 0.0)


def test_mixed_features_are_converted_for_every_format() -> None:
    assert needs_conversion(MemoryFormat.MIXED, MemoryFormat.CONTIGUOUS)
    assert needs_conversion(MemoryFormat.MIXED, MemoryFormat.CHANNELS_LAST)
