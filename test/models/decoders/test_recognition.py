"""Which family reads an ONNX file's outputs: names, shapes and values, what stays open, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("onnx")

import export_values as values
from onnx import TensorProto
from onnx_files import COCO_SIZED, Shape, hollow, ultralytics

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.decoders.facts import OutputFacts
from split_infer_ros.models.decoders.layout import (
    Activation,
    Arrangement,
    Background,
    BoxEncoding,
    BoxRange,
    OutputLayout,
    Part,
)
from split_infer_ros.models.decoders.recognition import recognise
from split_infer_ros.models.decoders.registry import FAMILIES
from split_infer_ros.onnx.graph import OnnxGraph

SIZE = 640
Outputs = dict[str, npt.NDArray[Any]]
RTDETR = {"description": "Ultralytics rtdetr-l model", "head": "RTDETRDecoder"}
TWO = {"names": "{0: 'a', 1: 'b'}"}


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def noise(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return random(seed).normal(0, 1, shape).astype(np.float32)


def sigmoids(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return values.sigmoid(noise(*shape, seed=seed))


def facts_of(
    graph: OnnxGraph, classes: int | None = None, size: int = SIZE, trial: Outputs | None = None
) -> OutputFacts:
    names = graph.metadata.get("names")
    return OutputFacts(graph, size, size, classes or (names.count(":") if names else None), trial or {})


def read(
    outputs: Mapping[str, Shape], metadata: Mapping[str, str] | None = None, wanted: str | dict[str, object] = "auto"
) -> OutputLayout:
    return recognise(facts_of(hollow(outputs, metadata=metadata)), wanted).layout


def tried(
    outputs: Outputs,
    *,
    stated: Mapping[str, Shape] | None = None,
    classes: int | None = None,
    wanted: str | dict[str, object] = "auto",
    size: int = SIZE,
    metadata: Mapping[str, str] | None = None,
) -> OutputLayout:
    """Recognises outputs by a trial's values. By default, the file states an open batch in front of all of them."""
    shapes = stated or {name: ("batch", *array.shape[1:]) for name, array in outputs.items()}
    integers = {name: TensorProto.INT64 for name, array in outputs.items() if array.dtype.kind in "iu"}
    graph = hollow(shapes, inputs={"images": ("batch", 3, size, size)}, dtypes=integers, metadata=metadata)
    return recognise(facts_of(graph, classes, size, outputs), wanted).layout


def check_refused(outputs: Outputs, **more: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"are not recognised|can be those of") as refusal:
        tried(outputs, **more)
    for name in outputs:
        assert f"{name} " in str(refusal.value)


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
        read(outputs, metadata)


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
def test_unknown_outputs_are_refused_with_a_way_out(outputs: dict[str, Shape]) -> None:
    with pytest.raises(ConfigurationError, match="are not recognised") as refusal:
        read(outputs)
    sentence = str(refusal.value)
    for name in outputs:
        assert f"{name} float32 (" in sentence
    assert "decoder" in sentence
    assert "FILE.yaml" in sentence
    assert "Python entry" in sentence


@pytest.mark.parametrize(
    ("outputs", "metadata", "lost"),
    [
        ({"output0": (1, 116, 8400), "output1": (1, 32, 160, 160)}, ultralytics(task="segment"), "masks"),
        ({"output0": (1, 116, 8400), "output1": (1, 32, 160, 160)}, {}, "masks"),
        ({"output0": (1, 56, 8400)}, ultralytics(task="pose", names="{0: 'person'}"), "keypoints"),
        ({"output0": (1, 20, 8400)}, ultralytics(task="obb"), "angles"),
        ({"dets": (1, 9, 4), "labels": (1, 9, 91), "masks": (1, 9, 108, 108)}, {}, "masks"),
    ],
)
def test_masks_keypoints_and_angles_are_refused(outputs: dict[str, Shape], metadata: dict[str, str], lost: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"gives {lost}, which would be lost"):
        read(outputs, metadata)


def test_a_wanted_decoder_is_taken_if_it_fits() -> None:
    assert read({"x": (1, 8400, 85)}, wanted="yolov5").name == "yolov5"
    assert read({"x": (1, 8400, 85)}, wanted="yolox").encoding is BoxEncoding.CELLS
    assert read({"x": (1, 300, 6)}, wanted="rtdetr_end_to_end").range is BoxRange.UNIT
    assert read({"x": (1, 300, 6)}, wanted="yolov5").classes == 1
    unnamed = read({"x": (1, 300, 80), "y": (1, 300, 4)}, wanted="detr")
    assert (unnamed.scores, unnamed.boxes, unnamed.classes) == (Part(("x",)), Part(("y",)), 80)


@pytest.mark.parametrize(
    ("wanted", "outputs", "classes"),
    [
        ("yolov8", {"x": (1, 84, 8400)}, 79),  # one score too many
        ("yolov5", {"x": (1, 25200, 85)}, 79),
        ("yolox", {"x": (1, 8399, 85)}, None),  # not the cells of 640x640
        ("nanodet", {"x": (1, 8399, 112)}, None),
        ("end_to_end", {"x": (1, 300, 7)}, None),
        ("yolov7", {"x": (1, 300, 7)}, None),
        ("detr", {"x": (1, 300, 80)}, None),
        ("torchvision", {"x": (1, 300, 6)}, None),
        ("counted", {"boxes": (1, 9, 4), "scores": (1, 9), "classes": (1, 9)}, None),
        ("dets", {"dets": (1, 9, 4), "labels": (1, 9)}, None),
        ("boxes_scores", {"a": (1, 9, 5), "b": (1, 9, 3)}, None),
        ("centernet", {"hm": (1, 80, 99, 99), "wh": (1, 2, 99, 99)}, None),
        ("classifier", {"x": (1, 84, 8400)}, None),
    ],
)
def test_a_wanted_decoder_that_does_not_fit_is_refused(
    wanted: str, outputs: dict[str, Shape], classes: int | None
) -> None:
    with pytest.raises(ConfigurationError, match=rf"decoder {wanted} cannot read the outputs of model.onnx .*it reads"):
        recognise(facts_of(hollow(outputs), classes), wanted)


def test_a_wanted_decoder_ignores_other_outputs() -> None:
    shapes: dict[str, Shape] = {"a": (1, 25200, 8), "b": (1, 3, 80, 80, 8), "c": (1, 2)}
    assert read(shapes, wanted="yolov5").outputs == {"a"}
    assert read({"a": (1, 84, 8400), "b": (1, 2)}, wanted="yolov8").outputs == {"a"}


@pytest.mark.parametrize(("rows", "shape"), [(Arrangement.COLUMNS, (1, 84, 8400)), (Arrangement.ROWS, (1, 8400, 84))])
def test_a_named_decoder_finds_how_the_boxes_lie(rows: Arrangement, shape: Shape) -> None:
    """Both readings fit the shape. There are as many boxes as cells."""
    assert read({"x": shape}, wanted="yolov8").rows is rows


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_says_what_it_reads(name: str) -> None:
    assert FAMILIES[name].name == name
    assert FAMILIES[name].reads


def test_cells_follow_from_the_size_of_the_input() -> None:
    """(1, 2100, 85) is YOLOX's at 320x320. At 640x640, YOLOX has 8,400 boxes, so nothing fits."""
    graph = hollow({"output": (1, 2100, 85)})
    assert recognise(facts_of(graph, size=320)).layout.name == "yolox"
    with pytest.raises(ConfigurationError, match="not recognised"):
        recognise(facts_of(graph, size=640))


@pytest.mark.parametrize("name", ["output0", "output", "outputs", "x"])
@pytest.mark.parametrize("classes", [1, 3, 80])
@pytest.mark.parametrize("trained", [True, False])
def test_transposed_yolov8_is_recognised(name: str, classes: int, trained: bool) -> None:
    outputs = {name: values.yolov8(8400, classes, rows=True)(random(), trained)}
    layout = tried(outputs)
    assert (layout.name, layout.rows, layout.classes) == ("yolov8", Arrangement.ROWS, classes)
    metadata = ultralytics(names=str(dict.fromkeys(range(classes), "x")))
    assert tried(outputs, metadata=metadata).rows is Arrangement.ROWS


@pytest.mark.parametrize("count", [0, 1, 3, 100])
@pytest.mark.parametrize("batch", ["n", "total", 1])
def test_boxes_of_yolov7_are_read_with_their_images(count: int, batch: str | int) -> None:
    if batch == 1 and count != 1:
        batch = count
    corners = values.corners(random(), count, SIZE)[0] if count else np.zeros((0, 4), np.float32)
    labels, scores = random(1).integers(0, 80, (count, 1)), random(2).random((count, 1))
    rows = np.concatenate((np.zeros((count, 1)), corners, labels, scores), 1).astype(np.float32)
    layout = tried({"output": rows}, stated={"output": (batch, 7)})
    assert layout.name == "yolov7"
    assert (layout.boxes, layout.labels, layout.scores) == (
        Part(("output",), 1, 5),
        Part(("output",), 5, 6),
        Part(("output",), 6, 7),
    )


def test_a_classifier_of_seven_classes_is_none_of_boxes() -> None:
    assert tried({"logits": noise(1, 7)}).name == "classifier"


@pytest.mark.parametrize(("height", "width"), [(256, 256), (518, 518), (480, 640), (84, 8400), (192, 640), (100, 300)])
@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.1, 0.9), (0, 10), (0, 80), (0, 255), (-3, 3), (0.01, 2)])
def test_maps_of_depths_are_refused(height: int, width: int, low: float, high: float) -> None:
    shape = cv2.resize(random().random((7, 7), np.float32), (width, height))
    depths = (low + (high - low) * (shape - shape.min()) / np.ptp(shape)).astype(np.float32)
    check_refused({"predicted_depth": depths[None]})
    check_refused({"output": depths[None, None]})
    with pytest.raises(ConfigurationError):  # labels for another model do not make it a detector
        tried({"output": depths[None]}, classes=width - 5)


def test_a_map_of_zeros_is_no_detector() -> None:
    check_refused({"depth": np.zeros((1, 100, 300), np.float32)})


@pytest.mark.parametrize(
    ("length", "characters"), [(40, 97), (24, 37), (26, 6625), (160, 11), (100, 6), (25, 6), (20, 97)]
)
@pytest.mark.parametrize("kind", ["logits", "softmax", "logarithms", "sure", "blank"])
def test_recognisers_of_text_are_refused(length: int, characters: int, kind: str) -> None:
    logits = 3 * noise(1, length, characters)
    if kind in ("sure", "blank"):
        logits = 10 * logits if kind == "sure" else logits + 20 * (np.arange(characters) == 0)
    found = logits if kind == "logits" else values.softmax(logits)
    found = (np.log(found + 1e-9) if kind == "logarithms" else found).astype(np.float32)
    check_refused({"output": found})
    check_refused({"output": np.ascontiguousarray(found.transpose(0, 2, 1))})


@pytest.mark.parametrize("shape", [(197, 768), (50, 512), (257, 1024), (49, 2048), (300, 6), (300, 256), (8400, 84)])
@pytest.mark.parametrize("kind", ["normal", "small", "positive"])
def test_hidden_states_are_refused(shape: tuple[int, int], kind: str) -> None:
    states = noise(1, *shape) * np.float32(1 if kind == "normal" else 0.1)
    check_refused({"last_hidden_state": np.maximum(states, 0) if kind == "positive" else states})


@pytest.mark.parametrize("length", [64, 128, 192, 256, 384, 512, 768, 1024, 2048])
@pytest.mark.parametrize("name", ["output", "683", "fc1", "embedding"])
@pytest.mark.parametrize("scale", ["normalised", 0.1, 5])
def test_embeddings_are_no_classes(length: int, name: str, scale: str | float) -> None:
    found = noise(1, length)
    found = found / np.linalg.norm(found) if scale == "normalised" else found * np.float32(float(scale))
    check_refused({name: found})
    check_refused({name: found[..., None, None]})


@pytest.mark.parametrize("length", [10, 100, 1000])
def test_a_row_of_length_one_is_an_embedding(length: int) -> None:
    found = noise(1, length)
    assert tried({"output": found}).name == "classifier"
    check_refused({"output": found / np.linalg.norm(found)})


@pytest.mark.parametrize("length", [10, 42, 136, 196, 212, 936, 1404])
@pytest.mark.parametrize("scale", [1, 112])
def test_landmarks_are_no_classes(length: int, scale: int) -> None:
    """Coordinates are all positive, and logits are not."""
    places = random().uniform(0.05, 0.95, (1, length)).astype(np.float32) * np.float32(scale)
    check_refused({"output": places})
    check_refused({"landmarks": places - np.float32(scale / 2)})
    check_refused({"output": places.reshape(1, -1, 2)})


@pytest.mark.parametrize(("points", "numbers"), [(17, 3), (4, 2), (5, 3), (21, 3)])
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("is_transposed", [True, False])
def test_poses_are_refused_without_metadata(points: int, numbers: int, trained: bool, is_transposed: bool) -> None:
    places = random(1).uniform(0, SIZE, (1, 8400, points, numbers)).astype(np.float32)
    if numbers == 3:
        places[..., 2] = sigmoids(1, 8400, points)
    boxes = values.yolov8(8400, 1, rows=True)(random(), trained)
    rows = np.concatenate((boxes, places.reshape(1, 8400, -1)), 2)
    check_refused({"output0": rows if is_transposed else np.ascontiguousarray(rows.transpose(0, 2, 1))})


@pytest.mark.parametrize("classes", [1, 2, 3, 15, 18, 80])
@pytest.mark.parametrize("spread", [0.01, 0.3, 1])
@pytest.mark.parametrize("is_transposed", [True, False])
def test_rotated_boxes_are_refused_without_metadata(classes: int, spread: float, is_transposed: bool) -> None:
    """The last number is an angle. Even where all angles lie in 0..1, no class has such scores nearly everywhere."""
    boxes = values.yolov8(8400, classes, rows=True)(random(), True)
    angles = ((values.sigmoid(spread * noise(1, 8400, 1)) - 0.25) * np.pi).astype(np.float32)
    rows = np.concatenate((boxes, angles), 2)
    check_refused({"output0": rows if is_transposed else np.ascontiguousarray(rows.transpose(0, 2, 1))})


@pytest.mark.parametrize(
    "shape",
    [
        (1, 21, 64, 64),  # segments
        (1, 3, 128, 128),  # an image
        (1, 1, 160, 160),  # text
        (1, 17, 64, 48),  # heat maps of a pose
        (1, 2, 160, 160),
        (1, 160, 160),
        (1, 640, 640),
        (1, 1, 640),
        (1, 1),
        (1, 1500, 384),  # speech
        (1, 85, 17, 3),
    ],
)
@pytest.mark.parametrize("kind", ["normal", "sigmoid", "levels"])
def test_maps_and_sequences_are_refused(shape: tuple[int, ...], kind: str) -> None:
    found = {"normal": noise(*shape), "sigmoid": sigmoids(*shape), "levels": 255 * np.abs(noise(*shape))}[kind]
    check_refused({"output": found.astype(np.float32)})


RAW = {
    "retinaface": {"a": noise(1, 16800, 4), "b": values.softmax(noise(1, 16800, 2)), "c": noise(1, 16800, 10)},
    "ssd with anchors": {"boxes": noise(1, 8732, 4), "scores": values.softmax(noise(1, 8732, 81))},
    "retinanet": {"cls_logits": noise(1, 76725, 91), "bbox_regression": noise(1, 76725, 4)},
    "efficientdet": {"regression": noise(1, 49104, 4), "classification": sigmoids(1, 49104, 90)},
    "blazeface": {"regressors": 640 * sigmoids(1, 896, 16), "classificators": noise(1, 896, 1)},
    "fcos": {f"{count} {side}": noise(1, count, side, side) for count in (80, 4) for side in (80, 40)},
    "openpose": {"a": noise(1, 19, 80, 80), "b": noise(1, 38, 80, 80)},
    "optical flow": {"a": noise(1, 2, 160, 160), "b": noise(1, 2, 160, 160)},
    "text": {"scores": sigmoids(1, 1, 160, 160), "geometry": 640 * sigmoids(1, 5, 160, 160)},
    "clip": {"text": noise(1, 512), "image": noise(1, 512)},
    "vit": {"last_hidden_state": noise(1, 197, 768), "pooler_output": noise(1, 768)},
    "age and gender": {"age": sigmoids(1, 1), "gender": sigmoids(1, 2)},
    "simcc": {"simcc_x": noise(1, 17, 384), "simcc_y": noise(1, 17, 512)},
    "features": {"keypoint": 640 * sigmoids(1, 99, 2), "scores": sigmoids(1, 99)},
}  # fmt: skip


@pytest.mark.parametrize("name", RAW)
def test_raw_numbers_of_other_networks_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        tried(RAW[name])


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize(("count", "side", "bins"), [(8500, 640, 8), (8400, 640, 8), (3598, 416, 8), (2125, 320, 16)])
@pytest.mark.parametrize("classes", [1, 20, 80])
def test_nanodet_is_never_a_yolov5(trained: bool, count: int, side: int, bins: int, classes: int) -> None:
    layout = tried({"output": values.nanodet(count, classes, bins)(random(), trained)}, size=side)
    assert (layout.name, layout.classes, layout.grid.bins) == ("nanodet", classes, bins)
    assert layout.grid.offset == (0.0 if count in (8500, 3598, 2125) else 0.5)


@pytest.mark.parametrize("is_unit", [True, False])
@pytest.mark.parametrize("names", [("boxes", "scores"), ("953", "output"), ("b", "a")])
@pytest.mark.parametrize("classes", [1, 3, 4, 80])
def test_boxes_and_scores_are_told_apart(is_unit: bool, names: tuple[str, str], classes: int) -> None:
    boxes = values.corners(random(), 8400, SIZE) / (SIZE if is_unit else 1)
    outputs = {names[1]: sigmoids(1, 8400, classes) ** 4, names[0]: boxes.astype(np.float32)}
    layout = tried(outputs)
    assert (layout.name, layout.classes) == ("boxes_scores", classes)
    assert (layout.boxes, layout.scores) == (Part((names[0],)), Part((names[1],)))
    assert layout.range is (BoxRange.UNIT if is_unit else BoxRange.PIXELS)


@pytest.mark.parametrize("place", [0, 20])
def test_the_background_of_an_ssd_is_found(place: int) -> None:
    logits = noise(1, 8732, 21)
    logits[..., place] += 6
    outputs = {"scores": values.softmax(logits), "boxes": values.corners(random(), 8732, SIZE) / SIZE}
    layout = tried(outputs)
    assert layout.background is (Background.FIRST if place == 0 else Background.LAST)
    assert layout.classes == 20


@pytest.mark.parametrize(("side", "range"), [(1.0, BoxRange.UNIT), (float(SIZE), BoxRange.PIXELS)])
def test_the_scale_of_selected_boxes_is_settled_by_the_trial(side: float, range: BoxRange) -> None:
    """A later image may show one small box alone, whose few pixels look like 0..1."""
    assert tried({"output0": values.selected(300, 80, side)(random(), True)}).range is range
    triple = {
        "boxes": values.corners_of_selected(20, side)(random(), True),
        "labels": values.labels_of_selected(20, 80)(random(), True),
        "scores": values.scores_of_selected(20)(random(), True),
    }
    assert tried(triple).range is range
    declared: dict[str, object] = {key: key.replace("classes", "labels") for key in ("boxes", "scores", "classes")}
    assert tried(triple, wanted=declared | {"range": "auto"}).range is range
    nothing = triple | {"boxes": np.zeros((1, 20, 4), np.float32)}
    assert tried(nothing).range is BoxRange.AUTO


@pytest.mark.parametrize(
    ("names", "is_unit", "encoding", "first"),
    [
        (("num_dets", "det_boxes", "det_scores", "det_classes"), False, BoxEncoding.CORNERS, 0),
        (
            ("num_detections", "detection_boxes", "detection_scores", "detection_classes"),
            False,
            BoxEncoding.CORNERS,
            0,
        ),
        (
            ("num_detections", "detection_boxes", "detection_scores", "detection_classes"),
            True,
            BoxEncoding.CORNERS_YX,
            1,
        ),
    ],
)
def test_counted_boxes_are_recognised(names: tuple[str, ...], is_unit: bool, encoding: BoxEncoding, first: int) -> None:
    boxes = values.corners(random(), 100, SIZE) / np.float32(SIZE if is_unit else 1)
    numbers = (np.array([[9]], np.int32), boxes, sigmoids(1, 100), random().integers(1, 80, (1, 100)))
    layout = tried(dict(zip(names, numbers, strict=True)))
    assert (layout.name, layout.encoding, layout.first_class) == ("counted", encoding, first)
    assert layout.counts == Part((names[0],))


def test_dets_with_labels_are_recognised() -> None:
    dets = np.concatenate((values.corners(random(), 100, SIZE), sigmoids(1, 100, 1)), 2)
    layout = tried({"dets": dets, "labels": random().integers(0, 80, (1, 100))})
    assert (layout.name, layout.labels) == ("dets", Part(("labels",)))


def test_levels_of_picodet_are_recognised_in_any_order() -> None:
    sides = (80, 40, 20, 10)
    outputs: Outputs = {f"d{side}": noise(1, side * side, 32) for side in sides[::-1]}
    outputs |= {f"c{side}": sigmoids(1, side * side, 5) for side in sides}
    layout = tried(outputs)
    assert (layout.name, layout.classes, layout.grid.strides) == ("distributions", 5, (8, 16, 32, 64))
    assert layout.boxes == Part(tuple(f"d{side}" for side in sides))
    assert layout.scores == Part(tuple(f"c{side}" for side in sides))


@pytest.mark.parametrize("are_logits", [True, False])
@pytest.mark.parametrize("classes", [1, 2, 80])
def test_heat_maps_are_recognised(are_logits: bool, classes: int) -> None:
    heat = noise(1, classes, 160, 160) - 3
    outputs = {"hm": heat if are_logits else values.sigmoid(heat)}
    outputs |= {"wh": np.abs(noise(1, 2, 160, 160)), "reg": sigmoids(1, 2, 160, 160)}
    layout = tried(outputs)
    assert (layout.name, layout.classes, layout.grid.strides) == ("centernet", classes, (4,))
    assert layout.activation is (Activation.SIGMOID if are_logits else Activation.NONE)
    assert layout.centres == Part(("reg",))


@pytest.mark.parametrize("count", [100, 125, 300])
@pytest.mark.parametrize("classes", [2, 10, 91])
def test_values_tell_the_softmax_of_a_detr(count: int, classes: int) -> None:
    """By 100 queries alone, nothing is told: many networks have sigmoids and 100 queries."""
    boxes = values.unit_boxes(count)(random(), True)
    exclusive = {"logits": values.exclusive(count, classes)(random(), True), "pred_boxes": boxes}
    layout = tried(exclusive)
    assert (layout.name, layout.classes, layout.background) == ("detr_softmax", classes, Background.LAST)
    sigmoid = {"logits": values.queries(count, classes)(random(), True), "pred_boxes": boxes}
    assert (tried(sigmoid).name, tried(sigmoid).classes) == ("detr", classes)


def test_the_number_of_names_tells_the_background_of_a_detr() -> None:
    untrained = {"logits": noise(1, 100, 11), "pred_boxes": sigmoids(1, 100, 4)}
    check_refused(untrained)
    assert tried(untrained, classes=10).name == "detr_softmax"
    assert tried(untrained, classes=11).name == "detr"


@pytest.mark.parametrize("probability", ["softmax", "sigmoid"])
def test_scores_of_queries_are_not_activated_twice(probability: str) -> None:
    logits = values.exclusive(100, 10)(random(), True)
    scores = values.softmax(logits) if probability == "softmax" else values.sigmoid(logits)
    layout = tried({"logits": scores, "pred_boxes": sigmoids(1, 100, 4)})
    assert layout.activation is Activation.NONE
    assert layout.name == ("detr_softmax" if probability == "softmax" else "detr")


@pytest.mark.parametrize("stated", [("N", 5), ("unk__12", 5), (None, 5), (1, 5)])
def test_a_classifiers_batch_may_have_any_symbol(stated: Shape) -> None:
    shape = ["" if length is None else length for length in stated]
    few = hollow({"logits": shape}, inputs={"images": ("unk__11", 3, 64, 64)})
    many = hollow({"output": (shape[0], 1000)}, inputs={"images": ("unk__11", 3, 64, 64)})
    assert recognise(facts_of(many, trial={"output": noise(1, 1000)})).layout.name == "classifier"
    if stated[0] != "N":
        assert recognise(facts_of(few, trial={"logits": noise(1, 5)})).layout.name == "classifier"


@pytest.mark.parametrize("operators", [["Softmax"], ["Sigmoid", "Identity"]])
def test_a_maker_of_probabilities_tells_a_classifier(operators: list[str]) -> None:
    graph = hollow({"y0": ("N", 3)}, operators=operators)
    layout = recognise(facts_of(graph)).layout
    assert (layout.name, layout.activation) == ("classifier", Activation.NONE)


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ({"boxes": "b", "scores": "a"}, "takes the boxes from b, which has 3 numbers for each box"),
        ({"boxes": "a", "scores": "c"}, "takes numbers of different boxes: a of 84, c of 9 boxes"),
        ({"boxes": "a", "scores": "b", "encoding": "cells", "strides": "8/16"}, "whose maps have 80 cells for 64x64"),
        ({"boxes": "a", "scores": "b", "encoding": "distributions"}, "encoding distributions needs 32"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(declared: dict[str, object], reason: str) -> None:
    outputs = {"a": noise(1, 84, 4), "b": sigmoids(1, 84, 3), "c": noise(1, 9, 3)}
    with pytest.raises(ConfigurationError, match=reason):
        tried(outputs, wanted=declared, size=64)


def test_names_of_classes_decide_between_readings() -> None:
    """(1, 8400, 8) has four classes after a box, and three after an objectness."""
    found = {"x": values.yolov6(8400, 3)(random(), True)}
    assert tried(found, classes=3).name == "yolov5"
    assert tried({"x": values.yolov8(8400, 4, rows=True)(random(), True)}, classes=4).name == "yolov8"
    metadata = {"names": COCO_SIZED}
    with pytest.raises(ConfigurationError, match=r"There are 80 labels for .* outputs have 3 classes .* yolov5"):
        tried(found, metadata=metadata)


@pytest.mark.parametrize("is_unit", [True, False])
def test_normalised_boxes_of_a_known_exporter_are_scaled(is_unit: bool) -> None:
    """Without metadata, numbers in 0..1 may be a map of anything."""
    found = values.yolov8(8400, 3)(random(), True)
    found[:, :4] /= SIZE if is_unit else 1
    metadata = ultralytics(names="{0: 'a', 1: 'b', 2: 'c'}")
    assert tried({"output0": found}, metadata=metadata).range is (BoxRange.UNIT if is_unit else BoxRange.PIXELS)
    if is_unit:
        check_refused({"output0": found})
