"""Boxes of TensorFlow: rows before columns in 0..1, and classes from 1, with their number or without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto
from onnx_files import Shape, hollow

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.decoders.decode import LayoutDecoder
from split_infer_ros.models.decoders.facts import OutputFacts
from split_infer_ros.models.decoders.layout import BoxEncoding, BoxRange, Part
from split_infer_ros.models.decoders.recognition import OutputReading, recognise
from split_infer_ros.models.detections import Limits

HEIGHT, WIDTH = 240, 320
NAMES = ("detection_boxes", "detection_scores", "detection_classes")
Outputs = dict[str, npt.NDArray[Any]]


def triple(names: tuple[str, ...] = NAMES, scale: float = 1.0) -> Outputs:
    """One box at the top right, and padding."""
    boxes = np.zeros((1, 100, 4), np.float32)
    boxes[0, 0] = np.array([0.1, 0.6, 0.3, 0.9]) * scale
    scores, classes = np.zeros((1, 100), np.float32), np.ones((1, 100), np.float32)
    scores[0, 0], classes[0, 0] = 0.9, 3
    return dict(zip(names, (boxes, scores, classes), strict=True))


def read(outputs: Outputs, wanted: str = "auto") -> OutputReading:
    shapes: dict[str, Shape] = {name: ("batch", *array.shape[1:]) for name, array in outputs.items()}
    integers = {name: TensorProto.INT32 for name, array in outputs.items() if array.dtype.kind == "i"}
    graph = hollow(shapes, inputs={"images": ("batch", 3, HEIGHT, WIDTH)}, dtypes=integers)
    return recognise(OutputFacts(graph, HEIGHT, WIDTH, None, outputs), wanted)


def counted(outputs: Outputs, name: str) -> Outputs:
    return outputs | {name: np.array([1], np.int32)}


@pytest.mark.parametrize("end", ["", ":0"])
@pytest.mark.parametrize("number", ["", "num_detections", "valid_detections"])
def test_boxes_are_read_as_tensorflow_gives_them(number: str, end: str) -> None:
    outputs = triple(tuple(name + end for name in NAMES))
    outputs = counted(outputs, number + end) if number else outputs
    reading = read(outputs)
    assert reading.layout.name == ("counted" if number else "torchvision")
    assert reading.recipe == "stretch,rgb,0..255"
    decode = LayoutDecoder(reading.layout, list(outputs), HEIGHT, WIDTH)
    (found,) = decode(tuple(outputs.values()), Limits())
    assert found.boxes.tolist() == [pytest.approx([0.6 * WIDTH, 0.1 * HEIGHT, 0.9 * WIDTH, 0.3 * HEIGHT])]
    assert found.labels.tolist() == [2]


def test_boxes_before_their_selection_are_not_read() -> None:
    """TensorFlow 2 gives them beside the selected ones."""
    random = np.random.default_rng(0)
    corner = random.uniform(0, 0.5, (1, 1917, 2))
    raw: Outputs = {
        "raw_detection_boxes": np.concatenate((corner, corner + 0.2), 2).astype(np.float32),
        "raw_detection_scores": random.uniform(0, 1, (1, 1917, 91)).astype(np.float32),
    }
    assert read(counted(triple(), "num_detections") | raw).layout.name == "counted"
    with pytest.raises(ConfigurationError, match="are not recognised"):
        read(raw)


@pytest.mark.parametrize("number", ["", "num_detections"])
def test_boxes_of_these_names_in_pixels_are_corners(number: str) -> None:
    """EfficientNMS has TensorFlow's names."""
    outputs = triple(scale=200.0)
    layout = read(counted(outputs, number) if number else outputs).layout
    assert (layout.encoding, layout.range, layout.first_class) == (BoxEncoding.CORNERS, BoxRange.PIXELS, 0)


@pytest.mark.parametrize("names", [("boxes", "scores", "classes"), ("nmsed_boxes", "nmsed_scores", "nmsed_classes")])
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_corners_of_unknown_order_are_refused(names: tuple[str, ...], scale: float) -> None:
    outputs = counted(triple(names, scale), "valid_detections")
    with pytest.raises(ConfigurationError, match=r"are not recognised\. By their shapes, decoder could be: .*counted"):
        read(outputs)
    layout = read(outputs, "counted").layout
    assert (layout.counts, layout.encoding) == (Part(("valid_detections",)), BoxEncoding.CORNERS)
    declared = f"boxes={names[0]},scores={names[1]},classes={names[2]},counts=valid_detections,encoding=corners_yx"
    assert read(outputs, declared).layout.encoding is BoxEncoding.CORNERS_YX
    assert read(triple(names, scale)).layout.encoding is BoxEncoding.CORNERS, "without it, they are torchvision's"
