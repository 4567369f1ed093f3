"""Ten thousand damaged image messages: each is served, or dropped for the one reason that fits."""

from __future__ import annotations

import array
import math
import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numpy as np
import pytest
import skimage.data
from damaged_images import FORMATS, damaged_image, real_images
from hypothesis import given, settings
from hypothesis import strategies as st
from rclpy.context import Context
from rclpy.qos import QoSProfile
from ros_pipeline import Pipeline
from ros_support import image, wait_until
from sensor_msgs.msg import CompressedImage, Image

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.errors import ImageError
from split_infer_ros.images.compressed import read_compressed
from split_infer_ros.images.encodings import ENCODINGS, Pixels, read_pixels
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.nodes.cv_bridge_encodings import find_encoding
from split_infer_ros.nodes.enable_service import EnableService
from split_infer_ros.nodes.image_input import ImageInput
from split_infer_ros.nodes.intra_process import IntraProcessPublisher
from split_infer_ros.preprocessing.host_preprocessor import HostPreprocessor
from split_infer_ros.preprocessing.loaded_batch import BatchForm
from split_infer_ros.server.admission import Intake
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.ledger import Ledger, LedgerCounts
from split_infer_ros.server.rate_limiter import RateLimiter

MAX_PIXELS = 100_000
MUTATED, DRAWN = 4000, 1000  # messages of each kind: real ones mutated, and whatever hypothesis thinks of
OVER_DDS = 200
DEPTH = 100
ODD_NUMBERS = (0, 1, 2, 3, 5, 63, 65, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
ODD_ENCODINGS = ("", "RGB8", "rgb8 ", "jpeg", "8UC2", "32FC3", "64FC1", "nv24", "bayer", "é", 300 * "x")


@cache
def photograph() -> bytes:
    """Returns a grey photograph of 512x512 pixels."""
    return bytes(skimage.data.camera().tobytes())


def real(rng: random.Random) -> Image:
    """Returns a part of a photograph in any encoding. Some floats of a float encoding are NaN or infinite."""
    encoding = rng.choice(sorted(ENCODINGS))
    layout = ENCODINGS[encoding]
    height, width, padding = 2 * rng.randint(2, 24), 2 * rng.randint(2, 32), rng.choice((0, 0, 1, 7))
    message = image(1, 1, stamp=rng.randrange(10**6), frame_id="camera")
    message.height, message.width, message.encoding = height, width, encoding
    message.step = width * layout.pixel_bytes + padding
    message.is_bigendian = rng.randrange(2)
    size = message.step * height * layout.rows_per_pair // 2
    data = bytearray(photograph()[:size])
    if np.dtype(layout.dtype).kind == "f":
        for nothing in (np.nan, np.inf, -np.inf):
            place = 4 * rng.randrange(size // 4)
            data[place : place + 4] = np.float32(nothing).tobytes()
    message.data = array.array("B", data)
    return message


def damaged_raw(rng: random.Random) -> Image:
    """Returns a real image with up to three damages."""
    message = real(rng)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        damage = rng.randrange(7)
        if damage < 3:
            field = ("height", "width", "step")[damage]
            near = getattr(message, field) + rng.choice((-2, -1, 1, 2, 50))
            setattr(message, field, rng.choice((*ODD_NUMBERS, min(max(near, 0), 2**32 - 1))))
        elif damage == 3:
            message.encoding = rng.choice((*ODD_ENCODINGS, *ENCODINGS))
        elif damage == 4:
            message.is_bigendian = rng.choice((0, 1, 2, 255))
        elif damage == 5:
            message.data = message.data[: rng.randrange(len(message.data) + 1)]
        else:
            message.data = array.array("B", rng.randbytes(len(message.data) + rng.choice((0, 1, 1000))))
    return message


def damaged_compressed(rng: random.Random) -> CompressedImage:
    """Returns a damaged JPEG or PNG image, sometimes with a wrong format."""
    name = rng.choice((*FORMATS, "tiff", "rgb8; png compressed \0"))
    return CompressedImage(format=name, data=array.array("B", damaged_image(rng)))


NUMBERS = st.one_of(st.sampled_from(ODD_NUMBERS), st.integers(0, 100), st.integers(0, 2**32 - 1))
BYTES = st.binary(max_size=2000)
RAW = st.builds(
    lambda data, **fields: Image(data=array.array("B", data), **fields),
    data=BYTES,
    height=NUMBERS,
    width=NUMBERS,
    step=NUMBERS,
    encoding=st.one_of(st.sampled_from(sorted(ENCODINGS)), st.text(max_size=20)),
    is_bigendian=st.integers(0, 255),
)
COMPRESSED = st.builds(
    lambda begin, rest, name: CompressedImage(data=array.array("B", begin + rest), format=name),
    begin=st.sampled_from((b"", *(found[:kept] for found in real_images() for kept in (20, 200, 10**6)))),
    rest=BYTES,
    name=st.one_of(st.sampled_from(FORMATS), st.text(max_size=20)),
)


# of each kind: the message, its topic, damaged ones, those that hypothesis thinks of, and what they are dropped under
KINDS: dict[str, tuple[Any, str, Callable[[random.Random], Any], st.SearchStrategy[Any], set[str]]] = {
    "raw": (
        Image,
        "image",
        damaged_raw,
        RAW,
        {"unknown_encoding", "empty_image", "too_large", "bad_size", "bad_step", "truncated_image"},
    ),
    "compressed": (
        CompressedImage,
        "image/compressed",
        damaged_compressed,
        COMPRESSED,
        {"unknown_format", "empty_image", "too_large", "corrupt_image"},
    ),
}


def expected(message: Any) -> str:
    """Returns the reason for which a message must be dropped, or ``published``."""
    try:
        if isinstance(message, CompressedImage):
            read_compressed(message.data, message.format, MAX_PIXELS)
        else:
            read_pixels(
                message.data,
                height=message.height,
                width=message.width,
                encoding=message.encoding,
                step=message.step,
                is_bigendian=bool(message.is_bigendian),
                max_pixels=MAX_PIXELS,
                find_other=find_encoding,
            )
    except ImageError as error:
        return error.reason
    return "published"


class Stage:
    """An intake that counts and pre-processes frames, but runs no model."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._preprocessor = HostPreprocessor(find_model("shapes").preprocess, BatchForm(FLOAT32), batch_size=1)

    def wait_for_room(self, timeout_s: float) -> bool:
        return True

    def check(self, pixels: Pixels) -> None:
        """Every image may come."""

    def refuse(self, error: ImageError, now: float) -> None:
        self.ledger.receive(now).drop(error.reason)

    def submit(self, pixels: Pixels, origin: Origin, now: float) -> None:
        ticket = self.ledger.receive(now)
        images = self._preprocessor.load([pixels]).images
        assert math.isfinite(images.sum()), "a value that is not finite makes the sum so"
        ticket.publish()


def outcomes(counts: LedgerCounts) -> Counter[str]:
    assert counts.balanced
    assert counts.in_flight == 0
    return Counter({"published": counts.published, **counts.dropped})


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_image_is_served_or_dropped(context: Context, kind: str) -> None:
    message, topic, damaged, drawn, names = KINDS[kind]
    rng = random.Random(1)
    wanted: Counter[str] = Counter()
    stage = Stage()
    backbone = {"autostart": False, "image_transport": kind, "max_image_pixels": MAX_PIXELS}
    with Pipeline(context, backbone=backbone) as pipeline:
        node = pipeline.backbone
        images = ImageInput(
            node,
            "image",
            intake=cast(Intake, stage),
            limiter=RateLimiter(0.0),
            enable=EnableService(pipeline.client.node),
            is_listened_to=lambda: True,
        )
        publisher = IntraProcessPublisher(pipeline.client.node, message, topic, QoSProfile(depth=5))

        def send(sent: Any) -> None:
            wanted[expected(sent)] += 1
            publisher.publish(sent)

        for _ in range(MUTATED):
            send(damaged(rng))
        settings(max_examples=DRAWN, database=None)(given(drawn)(send))()
        images.close()
    assert wanted.total() >= MUTATED + DRAWN
    assert set(wanted) == {"published", *names}
    assert outcomes(stage.ledger.counts()) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_image_over_dds_is_served_or_dropped(context: Context, kind: str) -> None:
    message, topic, damaged, _, names = KINDS[kind]
    rng = random.Random(2)
    wanted: Counter[str] = Counter()
    backbone = {"drop_policy": "block", "batch_size": 8, "image_reliability": "reliable", "image_depth": DEPTH}
    backbone |= {"image_transport": kind, "max_image_pixels": MAX_PIXELS}
    with Pipeline(context, backbone=backbone, head={}) as pipeline:
        images = pipeline.client.publisher(message, topic)
        for count in range(OVER_DDS):
            sent = damaged(rng)
            wanted[expected(sent)] += 1
            images.publish(sent)
            if count % (DEPTH // 2) == 0:  # no more are under way than the middleware keeps
                wait_until(lambda count=count: pipeline.counts.received > count - DEPTH // 4, f"frame {count}")
        assert outcomes(pipeline.settled(OVER_DDS)) == wanted
        assert set(wanted) <= {"published", *names}
        assert pipeline.client.state("backbone") == "active"
