"""Encodings that only cv_bridge knows are read, or refused for a named reason, whatever cv_bridge does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_messages import NATIVE, message_of, random_samples
from rclpy.context import Context
from rclpy.qos import QoSProfile
from ros_pipeline import Pipeline
from ros_support import image
from sensor_msgs.msg import Image

from split_infer_ros.errors import ImageError
from split_infer_ros.images.encodings import ENCODINGS, read_message
from split_infer_ros.nodes import cv_bridge_encodings
from split_infer_ros.nodes.cv_bridge_encodings import conversion_problem, find_encoding
from split_infer_ros.nodes.intra_process import IntraProcessPublisher

# Stands in for cv_bridge. It knows one encoding: polar3, three samples of 16 bits whose upper bytes are b, g and r.
PLANTED = """
import os, signal
import numpy as np

class CvBridge:
    def encoding_to_dtype_with_channels(self, name):
        if name != "polar3":
            raise TypeError(f"Unrecognized image encoding [{name}]")
        return "uint16", 3

    def imgmsg_to_cv2(self, message, desired):
        height, width = message.height, message.width
        is_trial = (height, width) == (16, 16)
        assert (desired, message.step, message.encoding) == ("rgb8", 6 * width, "polar3")
        samples = np.frombuffer(message.data, np.uint16).reshape(height, width, 3)
        FAILURE
        return (samples >> 8)[..., ::-1].astype(np.uint8)
"""
POLAR = random_samples(np.uint16, 5, 7, 3)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Forgets what was asked of a cv_bridge, and the cv_bridge that a test planted."""
    known = sys.modules.get("cv_bridge")
    cv_bridge_encodings.forget_answers()
    yield
    cv_bridge_encodings.forget_answers()
    sys.modules.pop("cv_bridge", None)
    if known is not None:
        sys.modules["cv_bridge"] = known


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that plants a cv_bridge with a line of its own, for this process and its children."""

    def plant(failure: str = "pass", source: str = PLANTED) -> None:
        (tmp_path / "cv_bridge.py").write_text(source.replace("FAILURE", failure))
        sys.modules.pop("cv_bridge", None)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    return plant


@pytest.fixture
def real() -> Any:
    """The installed cv_bridge's bridge."""
    return pytest.importorskip("cv_bridge", reason="cv_bridge is not installed").CvBridge()


def read(message: Image) -> np.ndarray:
    """Reads an image as int (height, width, 3), red first."""
    pixels = read_message(message, find_other=find_encoding)
    return pixels.data[..., list(pixels.rgb)].astype(int)


def refusal(encoding: str) -> str:
    with pytest.raises(ImageError) as refused:
        read(message_of(random_samples(np.uint8, 4, 6, 3), encoding))
    assert refused.value.reason == "unknown_encoding"
    assert str(refused.value).endswith(f"send one of {', '.join(ENCODINGS)}.")
    return str(refused.value)


def test_without_cv_bridge_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv_bridge", None)
    assert "'16SC1' is not supported, and cv_bridge, which may know it, is not installed; send" in refusal("16SC1")


@pytest.mark.parametrize(("padding", "is_bigendian"), [(0, False), (0, True), (5, NATIVE)])
def test_colours_come_from_cv_bridge(plant: Callable[..., None], padding: int, is_bigendian: bool) -> None:
    plant()
    colours = read(message_of(POLAR, "polar3", padding=padding, is_bigendian=is_bigendian))
    assert np.array_equal(colours, (POLAR >> 8)[..., ::-1])
    assert colours.std() > 10
    assert "nor does cv_bridge know it (Unrecognized image encoding [polar4])" in refusal("polar4")


@pytest.mark.parametrize(
    ("failure", "finding"),
    [
        ("raise TypeError('no such conversion')", "cv_bridge cannot convert it to colours here (TypeError: no such"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "(it crashed with signal 11; was it built for another NumPy?)"),
    ],
)
def test_failing_conversion_is_found_in_another_process(plant: Callable[..., None], failure: str, finding: str) -> None:
    plant(failure)
    assert finding in refusal("polar3")


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ("raise RuntimeError('made for another NumPy')", "cannot be imported (made for another NumPy)"),
        ("import no_such_module_at_all", "cannot be imported (No module named 'no_such_module_at_all')"),
        ("class CvBridge: pass", "nor does cv_bridge know it ('CvBridge' object has no attribute"),
    ],
)
def test_unusable_cv_bridge_is_named(plant: Callable[..., None], source: str, finding: str) -> None:
    plant(source=source)
    assert finding in refusal("polar3")


@pytest.mark.parametrize(
    "failure",
    [
        "if not is_trial: raise MemoryError('too much')",
        "if not is_trial: return None",
        "if not is_trial: return samples",
        "if not is_trial: return np.zeros((height, width), np.uint8)",
    ],
)
def test_failure_on_one_image_drops_that_image(plant: Callable[..., None], failure: str) -> None:
    plant(failure)
    with pytest.raises(ImageError) as refused:
        read(message_of(POLAR, "polar3"))
    assert refused.value.reason == "corrupt_image"
    assert "'polar3'" in str(refused.value)


def test_failing_cv_bridge_costs_only_its_frames(context: Context, plant: Callable[..., None]) -> None:
    plant("if not is_trial: raise RuntimeError('not today')")
    with Pipeline(context, head={"score_threshold": 0.0}, backbone={"drop_policy": "block"}) as pipeline:
        publisher = IntraProcessPublisher(pipeline.client.node, Image, "image", QoSProfile(depth=5))
        for message in (image(), message_of(POLAR, "polar3"), image(encoding="polar4"), image()):
            publisher.publish(message)
        counts = pipeline.settled(4)
        assert (counts.published, counts.dropped) == (2, {"corrupt_image": 1, "unknown_encoding": 1})


@pytest.mark.parametrize("name", ["", "x" * 100_000, f"8UC{'1' * 100_000}", "8UC3\0x", "é", "rgb8 "])
def test_odd_names_are_not_asked_of_cv_bridge(plant: Callable[..., None], name: str) -> None:
    """The installed cv_bridge was seen to end the process on the third of these names."""
    plant(source="raise SystemExit('asked')")
    assert "cv_bridge is asked only about short plain names" in refusal(name)


@pytest.mark.parametrize("is_bigendian", [False, True], ids=["little", "big"])
@pytest.mark.parametrize(
    ("encoding", "dtype"),
    [("8S", np.int8), ("16SC1", np.int16), ("32SC1", np.int32), ("64FC1", np.float64), ("32F", np.float32)],
)
def test_one_channel_of_numbers_is_a_measurement(real: Any, encoding: str, dtype: type, is_bigendian: bool) -> None:
    """Within one half of a grey value, and a little for rounding, of what cv_bridge's numbers should become."""
    samples = random_samples(dtype, 9, 13, 1)
    grey = read(message_of(samples, encoding, padding=3, is_bigendian=is_bigendian))[..., 0]
    passed = real.imgmsg_to_cv2(message_of(samples, encoding)).astype(float)
    low, high = passed.min(), passed.max()
    assert np.abs(grey - (passed - low) / (high - low) * 255).max() < 0.51
    assert grey.std() > 10


@pytest.mark.parametrize(("encoding", "channels"), [("16UC3", 3), ("16UC4", 4)])
def test_16_bits_of_opencv_hold_blue_first(real: Any, encoding: str, channels: int) -> None:
    """Equal: no 16-bit value divided by 257 is half-way between two integers."""
    samples = random_samples(np.uint16, 5, 7, channels)
    passed = real.imgmsg_to_cv2(message_of(samples, encoding))
    assert np.array_equal(read(message_of(samples, encoding, padding=1)), np.rint(passed[..., 2::-1] / 257))


def test_8_bits_of_one_channel_are_greys(real: Any) -> None:
    """Equal: nothing is computed."""
    message = message_of(random_samples(np.uint8, 5, 7, 1), "8U", padding=1)
    assert np.array_equal(read(message)[..., 1], real.imgmsg_to_cv2(message))


@pytest.mark.parametrize("encoding", ["8UC2", "16UC2", "16SC3", "32FC2", "32FC3", "64FC4", "8UC0", "8UC5", "8UC513"])
def test_numbers_without_a_meaning_are_refused(real: Any, encoding: str) -> None:
    assert "cv_bridge, which knows its numbers, does not know their colours" in refusal(encoding)


@pytest.mark.parametrize("encoding", ["nv24", "RGB8", "jpeg", "CV_8UC3"])
def test_what_neither_knows_is_refused(real: Any, encoding: str) -> None:
    assert f"nor does cv_bridge know it (Unrecognized image encoding [{encoding}])" in refusal(encoding)


@pytest.mark.parametrize("encoding", ["bgr8", "mono16", "bayer_grbg8", "bgra16", "yuv422"])
def test_cv_bridge_could_replace_our_table(real: Any, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """Within 1 for YUV, whose constants an OpenCV may round otherwise; else equal (see test_against_cv_bridge.py)."""
    layout = ENCODINGS[encoding]
    if problem := conversion_problem(encoding, layout.pixel_bytes):
        pytest.skip(f"cv_bridge cannot convert colours here: {problem}")
    samples = random_samples(layout.dtype, 6, 8, layout.channels)
    message = message_of(samples, encoding, padding=5, is_bigendian=not NATIVE)
    ours = read(message)
    monkeypatch.delitem(ENCODINGS, encoding)
    theirs = read(message)
    assert find_encoding(encoding).decode is not layout.decode
    assert np.abs(ours - theirs).max() <= (encoding == "yuv422")
    assert theirs.std() > 10
