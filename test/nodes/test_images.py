"""Images of every encoding and size give detections in their own pixels, with their header."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from comparisons import assert_same_detections
from partitions import partitions_of
from rcl_interfaces.msg import Log
from rclpy.context import Context
from ros_pipeline import Pipeline
from ros_support import Received, detections_of, image, wait_until
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from split_infer_ros.images.encodings import read_message
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.evaluation import Matcher
from split_infer_ros.models.shapes_file import LABELS
from split_infer_ros.sources import draw_scene
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec

LIMITS = Limits(score_threshold=0.2, nms_threshold=0.5, max_detections=20)


@pytest.fixture(scope="module")
def trained() -> SplitModel:
    return load_model(ModelSpec("shapes", "default", "auto"))


@pytest.fixture(scope="module")
def pipeline(context: Context, trained: SplitModel) -> Iterator[Pipeline]:
    head = {"score_threshold": LIMITS.score_threshold, "max_detections": LIMITS.max_detections}
    with Pipeline(context, backbone={"weights": "default"}, head={"weights": "default", **head}) as found:
        yield found


@pytest.fixture(scope="module")
def detections(pipeline: Pipeline) -> Received:
    return pipeline.client.subscribe(Detection2DArray, "detections")


@pytest.fixture(scope="module")
def images(pipeline: Pipeline) -> Any:
    return pipeline.client.publisher(Image, "image")


@pytest.fixture
def detect(detections: Received, images: Any) -> Callable[[Image], Detection2DArray]:
    """A function that sends an image and returns its detections."""

    def ask(message: Image) -> Detection2DArray:
        detections.clear()
        images.publish(message)
        return detections.wait_for(1)[0]

    return ask


PICTURED = ("rgb8", "bgr8", "rgba8", "bgra8", "mono8", "mono16", "bayer_grbg8")


def pictured(rgb: np.ndarray, encoding: str = "rgb8", padding: int = 0) -> Image:
    """Returns the message of a picture, with unused bytes between its rows."""
    grey = rgb.mean(axis=2, dtype=np.float32).astype(np.uint8)[..., None]
    opaque = np.full_like(grey, 255)
    mosaic = rgb[..., 1].copy()
    mosaic[0::2, 1::2], mosaic[1::2, 0::2] = rgb[0::2, 1::2, 0], rgb[1::2, 0::2, 2]
    pixels = {
        "rgb8": rgb,
        "bgr8": rgb[..., ::-1],
        "rgba8": np.concatenate([rgb, opaque], axis=2),
        "bgra8": np.concatenate([rgb[..., ::-1], opaque], axis=2),
        "mono8": grey,
        "mono16": np.concatenate([grey, np.zeros_like(grey)], axis=2),  # the upper byte first
        "bayer_grbg8": mosaic[..., None],
    }[encoding]
    height, width, size = pixels.shape
    message = image(height, width, encoding, stamp=1234, padding=padding)
    message.is_bigendian = int(encoding == "mono16")
    rows = np.frombuffer(message.data, np.uint8).reshape(height, message.step)
    rows[:, : width * size] = pixels.reshape(height, -1)
    return message


def directly(model: SplitModel, message: Image) -> Detections:
    """What the whole model says of an image when it is simply called."""
    preprocess, partitions, pixels = model.entry.preprocess, partitions_of(model, "output"), read_message(message)
    with torch.inference_mode():
        gathered = preprocess.gather([pixels], preprocess.staging(1))
        inputs = torch.from_numpy(preprocess.normalise(gathered))
        found = model.entry.decode(partitions.head(*partitions.backbone(inputs)), LIMITS)[0]
    return Detections(preprocess.to_source(found.boxes, pixels.height, pixels.width), found.scores, found.labels)


def check(answer: Detection2DArray, expected: Detections) -> None:
    """Compares detections up to rounding, because the pipeline is split and may use another number of threads."""
    assert_same_detections(detections_of(answer, LABELS), expected, scores=1e-3)


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("encoding", PICTURED)
def test_every_encoding_gives_the_models_detections(
    trained: SplitModel, detect: Callable[[Image], Detection2DArray], encoding: str, padding: int
) -> None:
    message = pictured(draw_scene(3, 0).image, encoding, padding)
    expected = directly(trained, message)
    assert len(expected.scores) >= 2  # else the comparison shows little
    check(detect(message), expected)


def test_boxes_follow_the_size_of_each_image(trained: SplitModel, detect: Callable[[Image], Detection2DArray]) -> None:
    found = 0
    for height, width in [(240, 320), (600, 800), (480, 640), (333, 517), (1080, 1920), (1, 1), (2, 700)]:
        drawn = min(height, width) >= 240
        message = pictured(draw_scene(3, 0, width, height).image, "bgr8") if drawn else image(height, width)
        expected = directly(trained, message)
        check(detect(message), expected)
        found += len(expected.scores)
    assert found >= 10


def test_objects_of_the_scene_are_found(detect: Callable[[Image], Detection2DArray]) -> None:
    matcher = Matcher()
    for index in range(5):
        scene = draw_scene(11, index, 800, 600)
        found = detections_of(detect(pictured(scene.image)), LABELS)
        sure = found.scores >= 0.5
        answer = Detections(found.boxes[sure], found.scores[sure], found.labels[sure])
        matcher.add(answer, scene.boxes, scene.labels)
    assert matcher.score().f1 > 0.8


def test_every_detection_repeats_the_header(detect: Callable[[Image], Detection2DArray]) -> None:
    message = pictured(draw_scene(3, 0).image)
    message.header.frame_id = "left_eye"
    message.header.stamp.sec, message.header.stamp.nanosec = 1_700_000_000, 999_999_999
    answer = detect(message)
    assert answer.header == message.header
    assert answer.detections
    assert all(found.header == message.header for found in answer.detections)


def test_empty_image_gives_an_empty_array(detect: Callable[[Image], Detection2DArray]) -> None:
    message = image(48, 64, stamp=55, frame_id="dark")
    message.data = array.array("B", bytes(len(message.data)))
    answer = detect(message)
    assert answer.detections == []
    assert answer.header == message.header


def spoilt(**changes: Any) -> Image:
    message = image()
    for name, value in changes.items():
        setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("truncated_image", spoilt(data=array.array("B", bytes(100)))),
        ("truncated_image", spoilt(data=array.array("B"))),
        ("truncated_image", spoilt(height=49)),
        ("too_large", spoilt(height=2**32 - 1, step=2**32 - 1)),
        ("bad_step", spoilt(step=64 * 3 - 1)),
        ("bad_step", spoilt(step=0)),
        ("bad_step", spoilt(width=65)),
        ("too_large", spoilt(width=2**32 - 1)),
        ("unknown_encoding", spoilt(encoding="nv24")),
        ("unknown_encoding", spoilt(encoding="")),
        ("unknown_encoding", spoilt(encoding="32FC2")),
        ("empty_image", spoilt(height=0, width=0, step=0, data=array.array("B"))),
        ("empty_image", spoilt(height=0)),
        ("empty_image", spoilt(width=0)),
    ],
)
def test_unreadable_image_is_dropped_and_next_is_served(
    pipeline: Pipeline, detections: Received, images: Any, reason: str, message: Image
) -> None:
    before = pipeline.settled(0)
    detections.clear()
    images.publish(message)
    images.publish(image(stamp=77))
    assert detections.wait_for(1)[0].header.stamp.nanosec == 77
    after = pipeline.settled(before.received + 2)
    assert after.received == before.received + 2
    assert after.published == before.published + 1
    assert after.dropped.get(reason, 0) == before.dropped.get(reason, 0) + 1


def test_refused_image_is_explained_in_the_log(pipeline: Pipeline, images: Any) -> None:
    log = pipeline.client.subscribe(Log, "/rosout")
    message = spoilt(encoding="nv24")

    def explained() -> bool:
        images.publish(message)  # what repeats is logged every few seconds
        return any("nv24" in entry.msg and "rgb8, bgr8" in entry.msg for entry in log)

    wait_until(explained, "a sentence in the log")
