"""The detector of the benchmarks as an ONNX file of a user, and the claims about it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benchmark_commands import reported

from benchmarks.common.claim import Verdict
from benchmarks.common.turns import Contest
from benchmarks.common.yolo_sized import HEIGHT, NUM_CLASSES, WIDTH, export, make_network, scenes
from benchmarks.rivals.usual import ONNXRUNTIME, OPENVINO_AS_IT_COMPILES, OPENVINO_FP32, TORCH, USUAL, without_twin
from benchmarks.ros.rival_turns import PIPELINE

TURNS = 20
THROUGHPUT = "pipeline_throughput"


def contest(**figures: float) -> Contest:
    return Contest("turns", lambda number: {}, figures={name: [value] * TURNS for name, value in figures.items()})


@pytest.mark.slow
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


def saturated(**more: float) -> Contest:
    """A contest in which the nodes in fp32 are fed too fast, and more rivals if there are."""
    rates = {PIPELINE: 60.0, THROUGHPUT: 62.0, TORCH: 25.0, ONNXRUNTIME: 30.0, OPENVINO_FP32: 40.0, **more}
    return contest(**rates, **{f"{rival} age p50": 2 / rate for rival, rate in rates.items()})


def test_claims_compare_with_the_better_engine_in_fp32() -> None:
    pytest.importorskip("rclpy")
    from benchmarks.detector import __main__ as detector

    engine, age, *_, fast, by_torch = detector.throughput_claims(saturated())
    assert (engine.found.value, age.found.value) == (1.5, pytest.approx(1 / 1.5))
    assert (fast.found.value, by_torch.found.value) == (1.55, 2.48)
    assert {claim.verdict for claim in (engine, age, fast, by_torch)} == {Verdict.HOLDS}
    slow = {PIPELINE: 0.03, TORCH: 0.05, ONNXRUNTIME: 0.04, OPENVINO_FP32: 0.025, OPENVINO_AS_IT_COMPILES: 0.01}
    (latency,) = detector.latency_claims(contest(**slow))
    assert latency.found.value == pytest.approx(1.2)
    assert latency.verdict is Verdict.FAILS


@pytest.mark.parametrize(("more", "frames"), [({OPENVINO_AS_IT_COMPILES: 80.0}, 0.75), ({}, 1.5)])
def test_claims_compare_with_openvino_as_it_compiles(more: dict[str, float], frames: float) -> None:
    """Where that is fp32, the node in fp32 stands for both."""
    pytest.importorskip("rclpy")
    from benchmarks.detector import __main__ as detector

    times, age = detector.throughput_claims(saturated(**more))[2:4]
    assert times.name == "frames/s, times those of OpenVINO's node as it compiles"
    assert (times.found.value, age.found.value) == (pytest.approx(frames), pytest.approx(1 / frames))
    assert times.verdict == age.verdict == (Verdict.FAILS if more else Verdict.HOLDS)


def test_rows_name_the_precision_of_each_usual_node() -> None:
    pytest.importorskip("rclpy")
    from benchmarks.detector import __main__ as detector

    def precisions(default: str) -> dict[str, tuple[str | None, str | None]]:
        rivals = (PIPELINE, THROUGHPUT, *without_twin(USUAL, default))
        turns = contest(**{name: 1.0 for rival in rivals for name in (rival, f"{rival} age p50")})
        turns.figures |= {"backbone_busy": [0.5] * TURNS, "head_busy": [0.5] * TURNS}
        usage = SimpleNamespace(row=lambda rival: {})
        bench = SimpleNamespace(rivals=rivals, usage={turns.name: usage})
        rows = detector.rows_of(turns, turns, bench, default)
        return {row["rival"]: (row.get("precision"), row.get("stands_for")) for row in rows}

    other = {PIPELINE: (None, None), THROUGHPUT: (None, None), TORCH: ("fp32", None), ONNXRUNTIME: ("fp32", None)}
    assert precisions("bf16") == other | {OPENVINO_FP32: ("fp32", None), OPENVINO_AS_IT_COMPILES: ("bf16", None)}
    assert precisions("fp32") == other | {OPENVINO_FP32: ("fp32", OPENVINO_AS_IT_COMPILES)}


def test_the_command_reports_made_up_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("rclpy")
    from benchmarks.detector import __main__ as detector

    rivals = (PIPELINE, THROUGHPUT, *without_twin(USUAL, "fp32"))
    slow = dict(zip(rivals, (0.03, 0.03, 0.05, 0.04, 0.025), strict=True))
    busy = {"backbone_busy": 0.5, "head_busy": 0.5}
    saturation, latency = saturated(**busy), contest(**slow, **busy)
    saturation.conclude, latency.conclude = detector.throughput_claims, detector.latency_claims
    usage = SimpleNamespace(row=lambda rival: {})
    made_up = SimpleNamespace(rivals=rivals, usage={saturation.name: usage})
    monkeypatch.setattr(detector, "run", lambda chosen: detector.conclude(saturation, latency, made_up, "fp32"))
    found = reported(detector.main, tmp_path, "--quick", "--seconds", "0")
    assert {row.get("rival") for row in found["rows"]} >= set(rivals)
    assert [claim["value"] for claim in found["claims"]][:2] == [1.5, pytest.approx(1 / 1.5)]
