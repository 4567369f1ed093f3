from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from split_infer_ros.errors import ImageError
from split_infer_ros.images.encodings import ENCODINGS, GREY, Encoding, Pixels, read_pixels, unknown_encoding
from split_infer_ros.images.sizes import MAX_PIXELS

VIEWED = sorted(name for name, layout in ENCODINGS.items() if layout.decode is None)


def as_array(image: bytes) -> array.array[int]:
    return array.array("B", image)


@pytest.mark.parametrize("container", [as_array, bytes, bytearray, lambda b: np.frombuffer(b, np.uint8)])
@given(
    encoding=st.sampled_from(VIEWED),
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    padding=st.integers(0, 9),
    surplus=st.integers(0, 3),
)
def test_every_pixel_is_where_the_message_says(
    container: Callable[[bytes], object], encoding: str, height: int, width: int, padding: int, surplus: int
) -> None:
    pixel_bytes = ENCODINGS[encoding].pixel_bytes
    step = width * pixel_bytes + padding
    image = bytes(np.random.default_rng(0).integers(0, 256, step * height + surplus, dtype=np.uint8))
    pixels = read_pixels(container(image), height=height, width=width, encoding=encoding, step=step)
    assert (pixels.height, pixels.width) == (height, width)
    assert pixels.data.shape == (height, width, pixel_bytes)
    assert pixels.data.dtype == np.uint8
    expected = [
        [[image[row * step + column * pixel_bytes + byte] for byte in range(pixel_bytes)] for column in range(width)]
        for row in range(height)
    ]
    assert pixels.data.tolist() == expected


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8", "rgba8", "bgra8", "mono8", "rgb16", "bgr16", "rgba16", "bgra16"])
def test_colours_are_named_by_the_encoding(encoding: str) -> None:
    orange = {"r": 255, "g": 128, "b": 0, "a": 9}
    letters = "g" if encoding == "mono8" else encoding.rstrip("168")
    # A 16-bit value with two equal bytes is 257 times the 8-bit value, in either byte order.
    data = bytes(orange[letter] for letter in letters for _ in range(2 if "16" in encoding else 1))
    pixels = read_pixels(data, height=1, width=1, encoding=encoding, step=len(data))
    expected = [128, 128, 128] if encoding == "mono8" else [255, 128, 0]
    assert pixels.data[0, 0, list(pixels.rgb)].tolist() == expected


@pytest.mark.parametrize(("opencv", "named"), [("8UC1", "mono8"), ("8UC3", "bgr8"), ("8UC4", "bgra8")])
def test_opencv_types_hold_the_colours_in_opencvs_order(opencv: str, named: str) -> None:
    assert ENCODINGS[opencv] == ENCODINGS[named]


@pytest.mark.parametrize("encoding", VIEWED)
@pytest.mark.parametrize("padding", [0, 5])
def test_the_message_is_not_copied(encoding: str, padding: int) -> None:
    pixel_bytes = ENCODINGS[encoding].pixel_bytes
    step = 6 * pixel_bytes + padding
    message = array.array("B", bytes(step * 4))
    pixels = read_pixels(message, height=4, width=6, encoding=encoding, step=step)
    assert pixels.data.ctypes.data == message.buffer_info()[0]
    message[step + pixel_bytes] = 77  # row 1, column 1
    assert pixels.data[1, 1, 0] == 77


def test_read_only_bytes_are_viewed_in_place() -> None:
    message = np.frombuffer(bytes(4 * 6 * 3), np.uint8)
    pixels = read_pixels(message, height=4, width=6, encoding="rgb8", step=18)
    assert np.shares_memory(pixels.data, message)
    assert not pixels.data.flags.writeable


@pytest.mark.parametrize("encoding", sorted(set(ENCODINGS) - set(VIEWED)))
def test_decoding_does_not_change_the_message(encoding: str) -> None:
    layout = ENCODINGS[encoding]
    message = array.array(
        "B", np.random.default_rng(0).integers(0, 256, 4 * 6 * layout.pixel_bytes * 2, np.uint8).tobytes()
    )
    before = bytes(message)
    for is_bigendian in (False, True):
        pixels = read_pixels(
            message, height=4, width=6, encoding=encoding, step=6 * layout.pixel_bytes, is_bigendian=is_bigendian
        )
        pixels.data.fill(0)
    assert bytes(message) == before


def test_bytes_after_the_image_are_ignored() -> None:
    pixels = read_pixels(array.array("B", bytes(1000)), height=2, width=2, encoding="rgb8", step=6)
    assert pixels.data.shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("reason", "num_bytes", "height", "width", "encoding", "step"),
    [
        ("unknown_encoding", 48, 4, 4, "nv24", 12),
        ("unknown_encoding", 48, 4, 4, "", 12),
        ("unknown_encoding", 48, 4, 4, "RGB8", 12),
        ("empty_image", 0, 0, 0, "rgb8", 0),
        ("empty_image", 48, 0, 4, "rgb8", 12),
        ("empty_image", 48, 4, 0, "rgb8", 0),
        ("too_large", 48, 8000, 6000, "rgb8", 18000),
        ("too_large", 48, 2**32 - 1, 4, "rgb8", 2**32 - 1),
        ("bad_size", 48, 3, 3, "uyvy", 6),
        ("bad_size", 48, 1, 1, "yuv422", 2),
        ("bad_size", 48, 1, 5, "yuv422_yuy2", 10),
        ("bad_size", 48, 4, 3, "nv12", 4),
        ("bad_size", 48, 3, 4, "nv12", 4),
        ("bad_size", 48, 1, 1, "nv21", 1),
        ("bad_size", 48, 2, 5, "bayer_rggb8", 5),
        ("bad_size", 48, 5, 2, "bayer_grbg16", 4),
        ("bad_step", 48, 4, 4, "rgb8", 11),
        ("bad_step", 48, 4, 4, "rgba8", 15),
        ("bad_step", 48, 4, 4, "mono8", 0),
        ("bad_step", 48, 4, 4, "mono16", 7),
        ("bad_step", 48, 4, 4, "32FC1", 15),
        ("bad_step", 48, 4, 4, "yuyv", 7),
        ("truncated_image", 47, 4, 4, "rgb8", 12),
        ("truncated_image", 0, 4, 4, "rgb8", 12),
        ("truncated_image", 48, 4, 4, "rgb8", 13),
        ("truncated_image", 23, 4, 4, "nv12", 4),  # the plane of colours is missing
        ("truncated_image", 48, MAX_PIXELS, 1, "rgb8", 2**32 - 1),
    ],
)
def test_unreadable_images_are_refused_with_a_reason(
    reason: str, num_bytes: int, height: int, width: int, encoding: str, step: int
) -> None:
    with pytest.raises(ImageError) as refusal:
        read_pixels(array.array("B", bytes(num_bytes)), height=height, width=width, encoding=encoding, step=step)
    assert refusal.value.reason == reason
    assert str(refusal.value).endswith(".")


def test_other_encodings_are_asked_of_the_finder() -> None:
    asked = []

    def find_other(name: str) -> Encoding:
        asked.append(name)
        if name != "grey":
            raise unknown_encoding(name, "is known to nobody")
        return Encoding(1, GREY)

    message = {"height": 2, "width": 3, "step": 4, "find_other": find_other}
    assert read_pixels(bytes(range(8)), encoding="grey", **message).data.tolist() == [
        [[0], [1], [2]],
        [[4], [5], [6]],
    ]
    assert read_pixels(bytes(range(8)), encoding="mono8", **message).data.shape == (2, 3, 1)
    with pytest.raises(ImageError, match="'white' is known to nobody; send one of rgb8, "):
        read_pixels(bytes(8), encoding="white", **message)
    assert asked == ["grey", "white"]


def test_an_unknown_name_is_shortened_in_the_error() -> None:
    with pytest.raises(ImageError) as refusal:
        read_pixels(bytes(8), height=1, width=1, encoding="x" * 100_000, step=8)
    assert len(str(refusal.value)) < 500


def test_the_limit_on_the_size_can_be_set() -> None:
    message = {"height": 4, "width": 5, "encoding": "mono8", "step": 5}
    assert read_pixels(bytes(20), **message, max_pixels=20).height == 4
    with pytest.raises(ImageError, match="5x4 pixels exceeds the limit of 19 pixels"):
        read_pixels(bytes(20), **message, max_pixels=19)


def read_or_reason(data: Any, **message: Any) -> Pixels | str:
    """The image, or the reason why it is refused; any other exception fails the test."""
    try:
        return read_pixels(data, **message)
    except ImageError as refusal:
        return refusal.reason


def is_sound(pixels: Pixels, height: int, width: int) -> bool:
    pixels.data[..., list(pixels.rgb)].sum()  # reads every byte
    return pixels.data.dtype == np.uint8 and pixels.data.shape[:2] == (height, width)


SIZES = st.one_of(st.integers(0, 12), st.integers(0, 2**32 - 1))


@settings(max_examples=500)
@given(
    data=st.binary(max_size=600),
    height=SIZES,
    width=SIZES,
    encoding=st.one_of(st.sampled_from(sorted(ENCODINGS)), st.text(max_size=12)),
    step=SIZES,
    is_bigendian=st.booleans(),
)
def test_any_message_is_read_or_refused(
    data: bytes, height: int, width: int, encoding: str, step: int, is_bigendian: bool
) -> None:
    result = read_or_reason(
        array.array("B", data),
        height=height,
        width=width,
        encoding=encoding,
        step=step,
        is_bigendian=is_bigendian,
    )
    assert isinstance(result, str) or is_sound(result, height, width)


@settings(max_examples=500)
@given(
    seed=st.integers(0, 2**32 - 1),
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    encoding=st.sampled_from(sorted(ENCODINGS)),
    padding=st.integers(0, 5),
    offset=st.integers(0, 3),
    is_bigendian=st.booleans(),
)
def test_sizes_are_read_unless_the_encoding_forbids_them(
    seed: int, height: int, width: int, encoding: str, padding: int, offset: int, is_bigendian: bool
) -> None:
    layout = ENCODINGS[encoding]
    step = width * layout.pixel_bytes + padding
    data = np.random.default_rng(seed).integers(0, 256, offset + step * height * layout.rows_per_pair // 2, np.uint8)
    result = read_or_reason(
        data[offset:],  # at odd addresses as well
        height=height,
        width=width,
        encoding=encoding,
        step=step,
        is_bigendian=is_bigendian,
    )
    if layout.min_side > min(height, width) or height % layout.multiple[0] or width % layout.multiple[1]:
        assert result == "bad_size"
    else:
        assert isinstance(result, Pixels)
        assert is_sound(result, height, width)
