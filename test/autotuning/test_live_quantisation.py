"""A trial process quantises its model with the images that it is given, and times the result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
pytest.importorskip("nncf")
import onnx
from onnx_files import network, ultralytics

from split_infer_ros.autotuning.background_trials import BackgroundTrials
from split_infer_ros.autotuning.handed_arrays import handed, taken
from split_infer_ros.autotuning.spaces import QUANTISE, network_space
from split_infer_ros.autotuning.trial_process import TrialProcess
from split_infer_ros.engines.precision import Precision
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec


def test_a_model_is_quantised_and_timed_in_the_trial_process(tmp_path: Path) -> None:
    path = tmp_path / "detector.onnx"
    metadata = ultralytics(imgsz="[32, 32]", names="{0: 'a', 1: 'b', 2: 'c'}")
    path.write_bytes(network(21, 7, metadata=metadata, transposed=True).SerializeToString())
    spec = ModelSpec(str(path), device="cpu")
    images = np.random.default_rng(0).integers(0, 256, (16, 32, 32, 3), np.uint8)
    trials = BackgroundTrials(spec, open_runner=TrialProcess)  # at its usual priority, so that nothing starves it
    try:
        with handed(images) as description:
            outcome = trials.run(QUANTISE, {"images": description, "scope": 0})
        assert outcome.error is None
        assert (outcome.facts["scope"], outcome.facts["scopes"] >= 1) == ("all layers", True)
        graph = onnx.ModelProto.FromString(taken(outcome.facts["graph"]).tobytes())
        assert any(node.op_type == "QuantizeLinear" for node in graph.graph.node)
        space = network_space(1, (Precision.INT8,), "cpu", compilers=False, engines=("openvino",))
        records = trials.compare({"int8": space.default}, load_model(spec), "output", lambda: False)
        assert [(record.config["precision"], record.error) for record in records] == [("fp32", None), ("int8", None)]
        assert all(record.median_s > 0 for record in records)
        with handed(images[:0]) as description:
            outcome = trials.run(QUANTISE, {"images": description, "scope": 0})
        assert outcome.error is not None
        assert "cannot be quantised" in outcome.error
    finally:
        trials.close()
