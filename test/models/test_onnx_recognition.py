"""Which decoder reads an ONNX file's outputs: metadata, names and shapes, what stays open, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

pytest.importorskip("onnx")

from onnx import TensorProto
from onnx_files import COCO_SIZED, Shape, hollow, ultralytics

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.onnx_options import LAYOUTS, Decoder
from split_infer_ros.models.onnx_outputs import OutputFacts, OutputLayout
from split_infer_ros.models.onnx_recognition import recognise
from split_infer_ros.onnx_graphs.graph import OnnxGraph

NAMES = {"names": COCO_SIZED}
RTDETR = {"description": "Ultralytics rtdetr-l model", "head": "RTDETRDecoder"}
TWO = {"names": "{0: 'a', 1: 'b'}"}


def facts_of(graph: OnnxGraph, classes: int | None = None, size: int = 640) -> OutputFacts:
    names = graph.metadata.get("names")
    return OutputFacts(graph, size, size, classes or (names.count(":") if names else None))


def recognised(outputs: Mapping[str, Shape], metadata: Mapping[str, str] | None = None) -> OutputLayout:
    return recognise(facts_of(hollow(outputs, metadata=metadata)))


@pytest.mark.parametrize(
    ("decoder", "shape", "metadata"),
    [
        (Decoder.YOLOV8, (1, 84, 8400), ultralytics()),
        (Decoder.YOLOV8, ("batch", 84, "anchors"), ultralytics()),
        (Decoder.YOLOV8, ("batch", "Concat_dim_1", "anchors"), ultralytics()),
        (Decoder.YOLOV8, (1, 84, 34000), ultralytics()),  # with a map of stride 4
        (Decoder.YOLOV8, (1, 6, 8400), ultralytics(**TWO)),
        (Decoder.END_TO_END, (1, 300, 6), ultralytics(end2end="True")),
        (Decoder.END_TO_END, ("batch", "boxes", "numbers"), ultralytics(end2end="True")),
        (Decoder.END_TO_END, (1, 300, 6), ultralytics(args="{'nms': True}")),
        (Decoder.END_TO_END, (1, 300, 6), ultralytics(**TWO)),
        (Decoder.RTDETR_END_TO_END, (1, 300, 6), ultralytics(**RTDETR)),
        (Decoder.RTDETR_END_TO_END, ("batch", "a", "b"), ultralytics(**RTDETR)),
        (Decoder.RTDETR, (1, 300, 84), ultralytics(**RTDETR)),
        (Decoder.YOLOV5, (1, 25200, 85), {"stride": "32", **NAMES}),
        (Decoder.YOLOV5, ("batch", "boxes", 85), {"stride": "32", **NAMES}),
        (Decoder.YOLOV5, (1, 25200, 6), {"stride": "32", "names": "{0: 'a'}"}),
        (Decoder.END_TO_END, (1, 300, 6), {"names": "{0: 'a'}"}),
        (Decoder.YOLOV5, (1, 3 * 8500, 85), {"stride": "64", **NAMES}),  # with a map of stride 64
    ],
)
def test_metadata_decides(decoder: Decoder, shape: Shape, metadata: dict[str, str]) -> None:
    layout = recognised({"output0": shape}, metadata)
    assert layout.decoder is decoder
    if decoder in (Decoder.YOLOV8, Decoder.YOLOV5, Decoder.RTDETR):
        assert layout.classes == metadata["names"].count(":")


@pytest.mark.parametrize(
    ("decoder", "name", "shape"),
    [
        (Decoder.YOLOV8, "output0", (1, 84, 8400)),
        (Decoder.YOLOV8, "x", (1, 84, 777)),  # more boxes than numbers
        (Decoder.YOLOV8, "x", ("batch", 84, "boxes")),
        (Decoder.YOLOV5, "output", (1, 25200, 85)),
        (Decoder.YOLOV5, "output", (1, 25200, 6)),
        (Decoder.YOLOX, "output", (1, 8400, 85)),
        (Decoder.YOLOV5, "outputs", (1, 8400, 85)),  # YOLOv6
        (Decoder.END_TO_END, "output0", (1, 300, 6)),
        (Decoder.END_TO_END, "x", (1, 100, 6)),
        (Decoder.CLASSIFIER, "x", (1, 1000)),
        (Decoder.CLASSIFIER, "x", ("N", 1000, 1, 1)),
    ],
)
def test_without_metadata_names_and_shapes_decide(decoder: Decoder, name: str, shape: Shape) -> None:
    assert recognised({name: shape}).decoder is decoder


def test_an_exponential_tells_yolox() -> None:
    graph = hollow({"x": (1, 8400, 85)}, operators=["Conv", "Exp"])
    assert recognise(facts_of(graph)).decoder is Decoder.YOLOX


@pytest.mark.parametrize(
    ("outputs", "decoder", "order"),
    [
        ({"logits": (1, 300, 80), "pred_boxes": (1, 300, 4)}, Decoder.DETR, (0, 1)),
        ({"pred_boxes": (1, 300, 4), "logits": (1, 300, 4)}, Decoder.DETR, (1, 0)),
        ({"dets": (1, 100, 4), "labels": (1, 100, 91)}, Decoder.DETR, (1, 0)),
        ({"pred_logits": (1, 100, 92), "pred_boxes": (1, 100, 4)}, Decoder.DETR_SOFTMAX, (0, 1)),
        ({"boxes": ("n", 4), "labels": ("n",), "scores": ("n",)}, Decoder.TORCHVISION, (0, 1, 2)),
        ({"scores": (1, 300), "labels": (1, 300), "boxes": (1, 300, 4)}, Decoder.TORCHVISION, (2, 1, 0)),
    ],
)
def test_several_outputs_are_told_apart(outputs: dict[str, Shape], decoder: Decoder, order: tuple[int, ...]) -> None:
    layout = recognised(outputs)
    assert (layout.decoder, layout.order) == (decoder, order)
    if decoder is Decoder.DETR_SOFTMAX:
        assert layout.classes == 91  # one of the 92 means that there is no object


def test_labels_are_told_by_their_dtype() -> None:
    outputs = {"1": ("n", 4), "2": ("n",), "3": ("n",)}
    layout = recognise(facts_of(hollow(outputs, dtypes={"3": TensorProto.INT64})))
    assert layout.order == (0, 2, 1)


@pytest.mark.parametrize(
    ("outputs", "metadata", "between"),
    [
        ({"output0": (1, 300, 6)}, ultralytics(**RTDETR, **TWO), "rtdetr or rtdetr_end_to_end"),
        ({"x": (1, 8400, 85)}, {}, "yolov5 or yolox"),
        ({"x": ("batch", "boxes", 85)}, {}, "yolov5 or yolox"),
        ({"x": ("batch", "boxes", 6)}, {}, "yolov5 or yolox or end_to_end"),
    ],
)
def test_what_stays_open_is_refused(outputs: dict[str, Shape], metadata: dict[str, str], between: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{next(iter(outputs))} float32 .*can be those of {between}; set"):
        recognised(outputs, metadata)


@pytest.mark.parametrize(
    "outputs",
    [
        {"x": (1, 84, 80, 80)},
        {"confs": (1, 300, 80), "places": (1, 300, 4)},
        {"a": (1, 3), "b": (1, 3), "c": (1, 3)},
        {"a": (1, 255, 80, 80), "b": (1, 255, 40, 40), "c": (1, 255, 20, 20), "d": (1, 85)},
        {"x": (1, "rows", "columns")},
        {"x": ()},
        {"x": (1, 1)},
    ],
)
def test_unknown_outputs_are_refused_with_the_list(outputs: dict[str, Shape]) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        recognised(outputs)
    sentence = str(refusal.value)
    for name in outputs:
        assert f"{name} float32 (" in sentence
    for decoder, layout in LAYOUTS.items():
        assert f"{decoder.value} {layout}" in sentence


@pytest.mark.parametrize(
    ("outputs", "metadata", "lost"),
    [
        ({"output0": (1, 116, 8400), "output1": (1, 32, 160, 160)}, ultralytics(task="segment"), "masks"),
        ({"output0": (1, 56, 8400)}, ultralytics(task="pose", names="{0: 'person'}"), "keypoints"),
        ({"output0": (1, 20, 8400)}, ultralytics(task="obb"), "angles"),
        ({"dets": (1, 9, 4), "labels": (1, 9, 91), "masks": (1, 9, 108, 108)}, {}, "masks"),
    ],
)
def test_masks_keypoints_and_angles_are_refused(outputs: dict[str, Shape], metadata: dict[str, str], lost: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"gives {lost}, which would be lost"):
        recognised(outputs, metadata)


def test_a_wanted_decoder_is_taken_if_it_fits() -> None:
    facts = facts_of(hollow({"x": (1, 8400, 85)}))
    assert recognise(facts, "yolov5").decoder is Decoder.YOLOV5
    assert recognise(facts, "yolox").decoder is Decoder.YOLOX
    assert recognise(facts_of(hollow({"x": (1, 300, 6)})), "rtdetr_end_to_end").decoder is Decoder.RTDETR_END_TO_END
    assert recognise(facts_of(hollow({"x": (1, 300, 6)})), "yolov5").classes == 1
    unnamed = facts_of(hollow({"x": (1, 300, 80), "y": (1, 300, 4)}))
    assert recognise(unnamed, "detr") == OutputLayout(Decoder.DETR, (0, 1), 80)


@pytest.mark.parametrize(
    ("wanted", "outputs", "classes"),
    [
        ("yolov8", {"x": (1, 84, 8400)}, 79),  # one score too many
        ("yolov5", {"x": (1, 25200, 85)}, 79),
        ("yolox", {"x": (1, 8399, 85)}, None),  # not the cells of 640x640
        ("end_to_end", {"x": (1, 300, 7)}, None),
        ("detr", {"x": (1, 300, 80)}, None),
        ("torchvision", {"x": (1, 300, 6)}, None),
        ("classifier", {"x": (1, 84, 8400)}, None),
        ("yolov8", {"a": (1, 84, 8400), "b": (1, 2)}, None),
    ],
)
def test_a_wanted_decoder_that_does_not_fit_is_refused(
    wanted: str, outputs: dict[str, Shape], classes: int | None
) -> None:
    with pytest.raises(ConfigurationError, match=rf"decoder {wanted} cannot read the outputs of model.onnx .*it reads"):
        recognise(facts_of(hollow(outputs), classes), wanted)


def test_cells_follow_from_the_size_of_the_input() -> None:
    """(1, 2100, 85) is YOLOX's at 320x320. At 640x640, YOLOX has 8,400 boxes, so only YOLOv5 is left."""
    graph = hollow({"output": (1, 2100, 85)})
    assert recognise(facts_of(graph, size=320)).decoder is Decoder.YOLOX
    assert recognise(facts_of(graph, size=640)).decoder is Decoder.YOLOV5
