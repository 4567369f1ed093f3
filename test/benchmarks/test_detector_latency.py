from __future__ import annotations

import _detector_latency as bench
import pytest
import torch

from split_infer_ros.models.detections import Candidates, Detections, Limits, suppress
from split_infer_ros.models.yolo import YoloBoxes


def test_the_small_detector_is_measured_in_both_ways() -> None:
    rows, claims = bench.measure(0.0, ["ssdlite320"], ["ssdlite320"])
    detector, fallback = rows
    assert detector["before_ms"] == detector["network_ms"] + detector["decode_before_ms"]
    assert detector["speedup"] == pytest.approx(detector["before_ms"] / detector["after_ms"])
    assert (fallback["copies"], fallback["copied_bytes"]) == (1, 1_228_920)
    assert fallback["device"] != "cpu" or 0 < fallback["overhead_percent"] < 50
    assert [claim.value for claim in claims] == [detector["speedup"], fallback["overhead_percent"]]
    assert claims[1].name.startswith("SSD_MobileNet, placed against")


@pytest.mark.parametrize("shapes", [((2, 3234, 91), (2, 3234, 4)), ((2, 10647, 85),)])
def test_drawn_answers_hold_objects_and_both_ways_find_the_same(shapes: tuple[tuple[int, ...], ...]) -> None:
    drawn = bench.drawn_like(tuple(torch.empty(shape) for shape in shapes))
    assert tuple(part.shape for part in drawn) == shapes
    if len(drawn) == 1:
        candidates = YoloBoxes()(drawn)
    else:
        candidates = Candidates(1000 * drawn[1].abs().cumsum(2), drawn[0].softmax(2)[..., 1:], None, 300)
    found = suppress(candidates, bench.LIMITS)
    assert all(len(one) >= bench.OBJECTS for one in found)
    bench.same(found, bench.class_by_class(candidates, bench.LIMITS))
    with pytest.raises(AssertionError):
        bench.same(found, [Detections.empty()] * 2)
    bench.same(suppress(candidates, Limits(1.0)), bench.class_by_class(candidates, Limits(1.0)))
