"""Damaged image messages, sent over DDS: each is served, or dropped under the one name that fits it."""

from __future__ import annotations

import array
import random
from collections import Counter
from functools import cache

import numpy as np
import pytest
import skimage.data
from rclpy.context import Context
from ros_support import Pipeline, image, wait_until
from sensor_msgs.msg import Image

from split_infer_ros.errors import ImageError
from split_infer_ros.images.encodings import ENCODINGS, read_pixels

MAX_PIXELS = 100_000
DEPTH = 100
NAMES = ("unknown_encoding", "empty_image", "too_large", "bad_size", "bad_step", "truncated_image")
ODD_NUMBERS = (0, 1, 2, 3, 5, 63, 65, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
ODD_ENCODINGS = ("", "RGB8", "rgb8 ", "jpeg", "8UC2", "32FC3", "64FC1", "nv24", "bayer", "é", 300 * "x")


@cache
def photograph() -> bytes:
    """Grey, 512x512."""
    return bytes(skimage.data.camera().tobytes())


def real(rng: random.Random) -> Image:
    """A part of a photograph in any encoding; where it holds floats, some are none."""
    encoding = rng.choice(sorted(ENCODINGS))
    layout = ENCODINGS[encoding]
    height, width, padding = 2 * rng.randint(2, 24), 2 * rng.randint(2, 32), rng.choice((0, 0, 1, 7))
    message = image(1, 1, stamp=rng.randrange(10**6), frame_id="camera")
    message.height, message.width, message.encoding = height, width, encoding
    message.step = width * layout.size + padding
    message.is_bigendian = rng.randrange(2)
    size = message.step * height * layout.rows // 2
    data = bytearray(photograph()[:size])
    if np.dtype(layout.sample).kind == "f":
        for nothing in (np.nan, np.inf, -np.inf):
            place = 4 * rng.randrange(size // 4)
            data[place : place + 4] = np.float32(nothing).tobytes()
    message.data = array.array("B", data)
    return message


def mutated(rng: random.Random) -> Image:
    """A real image with up to three damages."""
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


def expected(message: Image) -> str:
    """Under which name it is dropped, or that it is published."""
    shape = message.height, message.width, message.encoding, message.step, bool(message.is_bigendian)
    try:
        read_pixels(message.data, *shape, max_pixels=MAX_PIXELS)
    except ImageError as error:
        return error.reason
    return "published"


def fuzz(context: Context, count: int, seed: int) -> Counter[str]:
    """Send so many and compare what became of them with what was to be expected; returns that."""
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    backbone = {"drop_policy": "block", "image_reliability": "reliable", "image_depth": DEPTH, "batch_size": 8}
    with Pipeline(context, backbone={**backbone, "max_image_pixels": MAX_PIXELS}, head={}) as pipeline:
        images = pipeline.client.publisher(Image, "image")
        for sent in range(count):
            message = mutated(rng)
            outcomes[expected(message)] += 1
            images.publish(message)
            if sent % (DEPTH // 2) == 0:  # no more are under way than the middleware keeps
                wait_until(lambda: pipeline.counts.received > sent - DEPTH // 4, lambda: f"{sent}: {pipeline.counts}")
        counts = pipeline.settled(count)
        found = Counter({"published": counts.published, **counts.dropped})
        assert found == outcomes
        assert pipeline.client.state("backbone") == "active"
    return outcomes


def test_damaged_images_are_served_or_dropped_under_their_names(context: Context) -> None:
    outcomes = fuzz(context, 400, seed=1)
    assert set(outcomes) == {"published", *NAMES}, outcomes


@pytest.mark.slow
def test_ten_thousand_damaged_images_are_served_or_dropped_under_their_names(context: Context) -> None:
    print(fuzz(context, 10_000, seed=2))
