"""DETR with another number of labels than of logits: the values tell a softmax, and wrong labels are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import export_values as values
from onnx_files import Shape, hollow

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.decoders.facts import OutputFacts
from split_infer_ros.models.decoders.layout import Background
from split_infer_ros.models.decoders.recognition import recognise
from split_infer_ros.models.onnx_models import OnnxFile
from split_infer_ros.models.onnx_options import OnnxOptions

COUNT, LABELS = 100, 80
BOXES: dict[str, Shape] = {"pred_boxes": ("batch", COUNT, 4)}


@pytest.mark.parametrize(("kind", "logits"), [("detr_softmax", 92), ("detr", 91)])
def test_values_tell_where_labels_are_of_another_number(kind: str, logits: int) -> None:
    """COCO has 80 classes, whose numbers go to 90."""
    random = np.random.default_rng(0)
    draw = values.exclusive(COUNT, logits - 1) if kind == "detr_softmax" else values.queries(COUNT, logits)
    trial = {"logits": draw(random, True), "pred_boxes": values.unit_boxes(COUNT)(random, True)}
    graph = hollow({"logits": ("batch", COUNT, logits)} | BOXES)
    layout = recognise(OutputFacts(graph, 640, 640, LABELS, trial)).layout
    assert (layout.name, layout.classes) == (kind, 91)
    assert (layout.background is Background.LAST) is (kind == "detr_softmax")


@pytest.mark.parametrize(("logits", "count"), [(92, 80), (91, 80), (80, 79)])
def test_too_few_labels_of_a_detr_are_refused(tmp_path: Path, logits: int, count: int) -> None:
    """Only RF-DETR has logits that may mean nothing. Others would get the names of other classes."""
    path = tmp_path / "labels.txt"
    path.write_text("\n".join(f"class {number}" for number in range(count)))
    graph = hollow({"logits": ("batch", 300, logits), "pred_boxes": ("batch", 300, 4)})
    file = OnnxFile("detr.onnx", graph, OnnxOptions(labels=str(path), decoder="detr"))
    with pytest.raises(ConfigurationError, match=rf"There are {count} labels for .* outputs have {logits} classes"):
        file.entry(file.recognise())


@pytest.mark.parametrize(("logits", "labels"), [(92, 91), (11, 10)])
def test_one_label_less_than_logits_means_a_background(tmp_path: Path, logits: int, labels: int) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("\n".join(f"class {number}" for number in range(labels)))
    graph = hollow({"logits": ("batch", COUNT, logits)} | BOXES)
    file = OnnxFile("detr.onnx", graph, OnnxOptions(labels=str(path)))
    assert len(file.entry(file.recognise()).labels) == labels
