"""The detector of the benchmarks as an ONNX file of a user, and the claims about it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from _claim import Verdict
from _rival_turns import PIPELINE
from _turns import Contest
from _yolo_sized import HEIGHT, NUM_CLASSES, WIDTH, export, make_network, scenes

TURNS = 20


def contest(**figures: float) -> Contest:
    return Contest("turns", lambda number: {}, figures={name: [value] * TURNS for name, value in figures.items()})


@pytest.mark.timeout(120)
def test_file_is_recognised_and_results_are_the_modules(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from split_infer_ros.models.detections import Limits
    from split_infer_ros.split.load import load_model
    from split_infer_ros.split.model_spec import ModelSpec

    network, path = make_network(), tmp_path / "detector.onnx"
    export(network, path)
    model = load_model(ModelSpec(str(path), device="cpu"))
    assert model.entry.image_shape == (3, HEIGHT, WIDTH)
    assert len(model.entry.labels) == NUM_CLASSES
    assert "yolov8" in model.entry.summary
    assert "to_fine.4" in [split_point.name for split_point in model.split_points]
    branches, output = model.split_points[-2:]
    assert branches.bytes_per_image > output.bytes_per_image
    assert model.split_point("default") is output
    images = scenes(2)
    with torch.inference_mode():
        expected, (found,) = network(images), model.backbone("output")(images)
    # Two engines add in other orders. Rounding of a convolution is relative to the largest value of its sum, so the
    # difference is compared with the largest output, on any processor.
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    first, second = model.entry.decode((found,), Limits(score_threshold=0.25))
    assert min(len(first), len(second)) >= 20
    assert first.scores.std() > 0.05
    assert not np.array_equal(first.boxes[:20], second.boxes[:20])


def test_claims_compare_with_the_better_engine() -> None:
    pytest.importorskip("rclpy")
    import detector

    fast = contest(**{PIPELINE: 60.0, detector.TORCH: 25.0, detector.ONNXRUNTIME: 30.0, detector.OPENVINO: 40.0})
    engine, by_torch = detector.throughput_claims(fast)
    assert (engine.found.value, by_torch.found.value) == (1.5, 2.4)
    assert engine.verdict == by_torch.verdict == Verdict.HOLDS
    slow = contest(**{PIPELINE: 0.03, detector.TORCH: 0.05, detector.ONNXRUNTIME: 0.04, detector.OPENVINO: 0.025})
    (latency,) = detector.latency_claims(slow)
    assert latency.found.value == pytest.approx(1.2)
    assert latency.verdict is Verdict.FAILS
