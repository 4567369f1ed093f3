"""Exports that were accepted once stay accepted: names, shapes and metadata of exporters, and values like theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

pytest.importorskip("onnx")

import export_values as values
from export_values import Draw
from onnx import TensorProto
from onnx_files import COCO_SIZED, Shape, hollow, ultralytics

from split_infer_ros.models.decoders.recognition import OutputReading
from split_infer_ros.models.onnx_models import OnnxFile
from split_infer_ros.models.onnx_options import OnnxOptions

NAMES = {"names": COCO_SIZED}
RTDETR = {"description": "Ultralytics rtdetr-l model", "head": "RTDETRDecoder"}
ONE, TWO, THREE = (
    {"names": str({number: f"class {number}" for number in range(count)})} for count in (1, 2, 3)
)  # fmt: skip


@dataclass(frozen=True)
class Export:
    """A file as an exporter writes it.

    Attributes:
        decoder: the family that reads it.
        outputs: the shapes that the file states, by name.
        draw: the values for one image, by name.
        needs_trial: whether names and shapes alone leave it open.
    """

    decoder: str
    outputs: Mapping[str, Shape]
    draw: Mapping[str, Draw]
    metadata: Mapping[str, str] = field(default_factory=dict)
    size: int = 640
    operators: Sequence[str] = ("Conv",)
    integers: Sequence[str] = ()
    needs_trial: bool = False

    def file(self) -> OnnxFile:
        graph = hollow(
            self.outputs,
            metadata=self.metadata,
            inputs={"images": ("batch", 3, self.size, self.size)},
            dtypes=dict.fromkeys(self.integers, TensorProto.INT64),
            operators=self.operators,
        )
        return OnnxFile("model.onnx", graph, OnnxOptions())

    def recognised(self, *, trained: bool, seed: int = 0) -> OutputReading:
        random = np.random.default_rng(seed)
        return self.file().recognise({name: draw(random, trained) for name, draw in self.draw.items()})


def single(
    decoder: str,
    shape: Shape,
    draw: Draw,
    metadata: Mapping[str, str] | None = None,
    *,
    name: str = "output0",
    size: int = 640,
    operators: Sequence[str] = ("Conv",),
    needs_trial: bool = False,
) -> Export:
    return Export(
        decoder, {name: shape}, {name: draw}, metadata or {}, size, operators, needs_trial=needs_trial
    )  # fmt: skip


DENSE_V8 = values.yolov8(8400, 80)
EXPORTS = {
    # Ultralytics
    "yolov8": single("yolov8", (1, 84, 8400), DENSE_V8, ultralytics()),
    "yolo11 with open shapes": single("yolov8", ("batch", 84, "anchors"), DENSE_V8, ultralytics()),
    "yolo12 with nothing known": single("yolov8", ("batch", "Concat_dim_1", "anchors"), DENSE_V8, ultralytics()),
    "yolov8 of two classes": single("yolov8", (1, 6, 8400), values.yolov8(8400, 2), ultralytics(**TWO)),
    "yolov8 of one class": single("yolov8", (1, 5, 8400), values.yolov8(8400, 1), ultralytics(**ONE)),
    "yolov8-p2": single("yolov8", (1, 84, 34000), values.yolov8(34000, 80), ultralytics()),
    "yolov8 at 320": single("yolov8", (1, 84, 2100), values.yolov8(2100, 80, 320), ultralytics(), size=320),
    "yolov8 at 32": single("yolov8", ("b", 7, 21), values.yolov8(21, 3, 32), ultralytics(**THREE), size=32),
    "yolov8 without metadata": single("yolov8", (1, 84, 8400), DENSE_V8),
    "yolov8 of another size": single("yolov8", (1, 84, 777), values.yolov8(777, 80), name="x"),
    "yolov8 of three classes without metadata": single("yolov8", (1, 7, 8400), values.yolov8(8400, 3)),
    "yolov8 with an open number": single("yolov8", ("batch", 84, "boxes"), DENSE_V8, name="x"),
    "yolo26": single("end_to_end", (1, 300, 6), values.selected(300, 80), ultralytics(end2end="True")),
    "yolo26 with nothing known": single(
        "end_to_end", ("batch", "boxes", "numbers"), values.selected(300, 80), ultralytics(end2end="True")
    ),
    "yolov10": single("end_to_end", (1, 300, 6), values.selected(300, 2), ultralytics(**TWO)),
    "yolov8 with nms": single("end_to_end", (1, 300, 6), values.selected(300, 80), ultralytics(args="{'nms': True}")),
    "rtdetr": single("rtdetr", (1, 300, 84), values.unit_queries(300, 80), ultralytics(**RTDETR)),
    "rtdetr selected": single(
        "rtdetr_end_to_end", (1, 300, 6), values.selected(300, 80, 1, centred=True), ultralytics(**RTDETR)
    ),
    "rtdetr selected, with nothing known": single(
        "rtdetr_end_to_end", ("batch", "a", "b"), values.selected(300, 80, 1, centred=True), ultralytics(**RTDETR)
    ),
    "yolov8-cls": single("classifier", (1, 80), values.probabilities(80), ultralytics(task="classify")),
    "yolov8-cls of logits": single("classifier", (1, 3), values.logits(3), ultralytics(task="classify", **THREE)),
    # YOLOv5 and others with an objectness
    "yolov5": single("yolov5", (1, 25200, 85), values.yolov5(25200, 80), {"stride": "32", **NAMES}),
    "yolov5 with open shapes": single(
        "yolov5", ("batch", "boxes", 85), values.yolov5(25200, 80), {"stride": "32", **NAMES}
    ),
    "yolov5 of one class": single("yolov5", (1, 25200, 6), values.yolov5(25200, 1), {"stride": "32", **ONE}),
    "yolov5 of six maps": single("yolov5", (1, 25500, 85), values.yolov5(25500, 80), {"stride": "64", **NAMES}),
    "yolov5 of another size": single("yolov5", (1, 999, 8), values.yolov5(999, 3), {"stride": "32", **THREE}),
    "yolov7": single("yolov5", (1, 25200, 85), values.yolov5(25200, 80), name="output"),
    "yolov7 of one class": single("yolov5", (1, 25200, 6), values.yolov5(25200, 1), name="output"),
    "yolov7 at 416": single("yolov5", (1, 10647, 8), values.yolov5(10647, 3, 416), name="output", size=416),
    "yolov6": single("yolov5", (1, 8400, 85), values.yolov6(8400, 80), name="outputs"),
    "yolov6 of three classes": single("yolov5", (1, 8400, 8), values.yolov6(8400, 3), name="outputs"),
    "yolov6 of one class": single("yolov5", (1, 8400, 6), values.yolov6(8400, 1), name="outputs"),
    "yolox": single("yolox", (1, 8400, 85), values.yolox(8400, 80), name="output"),
    "yolox of three classes": single("yolox", (1, 8400, 8), values.yolox(8400, 3), name="output"),
    "yolox of one class": single("yolox", (1, 8400, 6), values.yolox(8400, 1), name="output"),
    "yolox at 416": single("yolox", (1, 3549, 85), values.yolox(3549, 80), name="output", size=416),
    "yolox decoded": single("yolox", (1, 8400, 85), values.yolov5(8400, 80), name="output", operators=["Conv", "Exp"]),
    "yolox decoded, of another name": single(
        "yolox", (1, 8400, 85), values.yolov5(8400, 80), name="x", operators=["Conv", "Exp"]
    ),
    "yolox decoded, of three classes": single(
        "yolox", (1, 8400, 8), values.yolov5(8400, 3), name="output", operators=["Conv", "Exp"]
    ),
    "yolox decoded, of one class": single(
        "yolox", (1, 8400, 6), values.yolov5(8400, 1), name="output", operators=["Conv", "Exp"]
    ),
    # Boxes that the network selected, without metadata
    "selected": single("end_to_end", (1, 300, 6), values.selected(300, 80)),
    "a hundred selected": single("end_to_end", (1, 100, 6), values.selected(100, 80), name="x"),
    "selected of one named class": single("end_to_end", (1, 300, 6), values.selected(300, 1), ONE),
    # The DETR family
    "rt-detr of hugging face": Export(
        "detr",
        {"logits": (1, 300, 80), "pred_boxes": (1, 300, 4)},
        {"logits": values.queries(300, 80), "pred_boxes": values.unit_boxes(300)},
    ),
    "rt-detr of four classes": Export(
        "detr",
        {"pred_boxes": (1, 300, 4), "logits": (1, 300, 4)},
        {"pred_boxes": values.unit_boxes(300), "logits": values.queries(300, 4)},
    ),
    "rf-detr": Export(
        "detr",
        {"dets": (1, 100, 4), "labels": (1, 100, 91)},
        {"dets": values.unit_boxes(100), "labels": values.queries(100, 91)},
    ),
    "rf-detr of 300 queries": Export(
        "detr",
        {"dets": (1, 300, 4), "labels": (1, 300, 3)},
        {"dets": values.unit_boxes(300), "labels": values.queries(300, 3)},
        TWO,
    ),
    "detr of hugging face": Export(
        "detr_softmax",
        {"logits": (1, 100, 92), "pred_boxes": (1, 100, 4)},
        {"logits": values.exclusive(100, 91), "pred_boxes": values.unit_boxes(100)},
    ),
    "detr": Export(
        "detr_softmax",
        {"pred_logits": ("b", 100, 92), "pred_boxes": ("b", 100, 4)},
        {"pred_logits": values.exclusive(100, 91), "pred_boxes": values.unit_boxes(100)},
    ),
    # torchvision
    "torchvision": Export(
        "torchvision",
        {"boxes": ("n", 4), "labels": ("n",), "scores": ("n",)},
        {
            "boxes": values.without_batch(values.corners_of_selected(30)),
            "labels": values.without_batch(values.labels_of_selected(30, 91)),
            "scores": values.without_batch(values.scores_of_selected(30)),
        },
        integers=["labels"],
    ),
    "torchvision that finds nothing": Export(
        "torchvision",
        {"boxes": ("n", 4), "labels": ("n",), "scores": ("n",)},
        {"boxes": values.noise(0, 4), "labels": values.labels_of_selected(0, 9), "scores": values.noise(0)}
        | {"labels": values.without_batch(values.labels_of_selected(0, 9))},
        integers=["labels"],
    ),
    "torchvision's kin in batches": Export(
        "torchvision",
        {"scores": (1, 300), "labels": (1, 300), "boxes": (1, 300, 4)},
        {
            "scores": values.scores_of_selected(300),
            "labels": values.labels_of_selected(300, 80, np.float32),
            "boxes": values.corners_of_selected(300),
        },
    ),
    "ssd of tensorflow without its number": Export(
        "torchvision",
        {"detection_boxes": (1, 100, 4), "detection_classes": (1, 100), "detection_scores": (1, 100)},
        {
            "detection_boxes": values.corners_of_selected(100, 1),
            "detection_classes": values.labels_of_selected(100, 90, np.float32),
            "detection_scores": values.scores_of_selected(100),
        },
    ),
    # Classifiers
    "torch's resnet": single("classifier", (1, 1000), values.logits(1000), name="495"),
    "timm's of 21k": single("classifier", ("batch", 21841), values.logits(21841), name="output"),
    "classifier with maps of one cell": single(
        "classifier", ("N", 1000, 1, 1), values.logits(1000, shape=(1, 1000, 1, 1)), name="x"
    ),
    "classifier of ten classes": single("classifier", ("batch", 10), values.logits(10), name="output"),
    "classifier of two classes": single("classifier", (1, 2), values.logits(2), name="linear"),
    "classifier of 37 probabilities": single("classifier", (1, 37), values.probabilities(37), name="x"),
    "classifier of 64 logits": single("classifier", (1, 64), values.logits(64), name="logits"),
    "timm's of 12k": single("classifier", ("batch", 11821), values.logits(11821), name="output"),
    "classifier of a hundred classes": single("classifier", ("batch", 100), values.logits(100), name="output"),
    "classifier of places": single("classifier", ("batch", 365), values.logits(365), name="output"),
    "classifier of five images": single("classifier", (1, 5), values.logits(5), name="image_logits"),
    "classifier with named classes": single("classifier", (1, 3), values.logits(3), THREE, name="x"),
}


@pytest.mark.parametrize("name", [name for name, export in EXPORTS.items() if not export.needs_trial])
def test_names_and_shapes_are_enough(name: str) -> None:
    export = EXPORTS[name]
    assert export.file().recognise().layout.name == export.decoder


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("name", EXPORTS)
def test_outputs_like_a_networks_are_read_as_ever(name: str, trained: bool) -> None:
    for seed in range(3):
        assert EXPORTS[name].recognised(trained=trained, seed=seed).layout.name == EXPORTS[name].decoder
