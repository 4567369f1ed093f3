"""A detector that was trained on COCO, in int8: calibrated on crops of two photographs, judged on those of others."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.numeric

for package in ("onnx", "onnxruntime", "openvino", "nncf", "skimage"):
    pytest.importorskip(package)

from trained_detector import MORE, PHOTOGRAPHS, trained_detector, write_crops  # noqa: E402

from split_infer_ros.engines.engine import Engine  # noqa: E402
from split_infer_ros.engines.executable import make_executable  # noqa: E402
from split_infer_ros.engines.execution_config import ExecutionConfig  # noqa: E402
from split_infer_ros.engines.precision_checks import has_vnni  # noqa: E402
from split_infer_ros.models.agreement import MAP  # noqa: E402
from split_infer_ros.models.detections import Detections  # noqa: E402
from split_infer_ros.onnx.graph import OnnxGraph  # noqa: E402
from split_infer_ros.quantisation.float_graph import float_graph  # noqa: E402
from split_infer_ros.quantisation.quality import MIN_AGREEMENT, compare, detect  # noqa: E402
from split_infer_ros.quantisation.quantise import quantise_graph  # noqa: E402
from split_infer_ros.quantisation.samples import Samples  # noqa: E402
from split_infer_ros.quantisation.scope import Scope  # noqa: E402
from split_infer_ros.split.load import load_model  # noqa: E402
from split_infer_ros.split.model import SplitModel  # noqa: E402
from split_infer_ros.split.model_spec import ModelSpec  # noqa: E402
from split_infer_ros.split.quantised_network import QuantisedNetwork  # noqa: E402

THRESHOLD = 0.5  # of what counts as an object, as in a pipeline
MIN_BOXES = 40


@pytest.mark.timeout(900)  # NNCF runs the network some hundred times
def test_int8_finds_what_float32_finds(tmp_path: Path) -> None:
    """Without VNNI, weights have 7 bits, and depthwise convolutions stay in float32 as well.

    The same graph in ONNX Runtime detects the same. What is rounded the other way moves a box by little.
    """
    model = load_model(ModelSpec(str(trained_detector()), device="cpu"))
    calibration = Samples(model.entry, write_crops(tmp_path, PHOTOGRAPHS[1:], 8, seed=0))
    test = Samples(model.entry, write_crops(tmp_path, (PHOTOGRAPHS[0], *MORE), 8, seed=10))
    scope = Scope.ALL_BUT_ENDS if has_vnni() else Scope.DENSE
    proto = quantise_graph(model, float_graph(model), scope, calibration, count=len(calibration))
    network = QuantisedNetwork(model.network, OnnxGraph("in int8", proto))
    quantised = SplitModel(network)
    by_onnxruntime = make_executable(network.prepared.whole(), ExecutionConfig(engine=Engine.ONNXRUNTIME))

    def boxes(found: list[Detections]) -> int:
        return sum(int((each.scores >= THRESHOLD).sum()) for each in found)

    expected = detect(model, test, MAP, lambda: None)
    assert boxes(expected) >= MIN_BOXES
    found, other = (detect(quantised, test, MAP, lambda: None, engine) for engine in (None, by_onnxruntime))
    assert compare(expected, found, measure=MAP, score_threshold=THRESHOLD).agreement >= MIN_AGREEMENT
    assert compare(other, found, measure=MAP, score_threshold=THRESHOLD).agreement >= MIN_AGREEMENT
