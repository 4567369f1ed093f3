"""``read_pixels`` decodes each encoding like a slow and plain reference."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from split_infer_ros.images.decoders import stretch_contrast
from split_infer_ros.images.encodings import ENCODINGS, read_pixels

LITTLE, BIG = False, True
NATIVE = sys.byteorder == "big"


def read(samples: np.ndarray, encoding: str, padding: int = 0, is_bigendian: bool = NATIVE) -> np.ndarray:
    """Reads an array (rows, bytes or samples per row) by ``read_pixels``: int (height, width, 3), red first."""
    rows = np.ascontiguousarray(samples.astype(samples.dtype.newbyteorder(">" if is_bigendian else "<")))
    rows = rows.reshape(len(rows), -1).view(np.uint8)
    layout = ENCODINGS[encoding]
    height, width = len(rows) * 2 // layout.rows_per_pair, rows.shape[1] // layout.pixel_bytes
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=99)
    pixels = read_pixels(
        padded.tobytes(),
        height=height,
        width=width,
        encoding=encoding,
        step=padded.shape[1],
        is_bigendian=is_bigendian,
    )
    return pixels.data[..., list(pixels.rgb)].astype(int)


def noise(*shape: int, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("padding", [0, 1, 6])
@pytest.mark.parametrize("is_bigendian", [LITTLE, BIG])
@pytest.mark.parametrize("encoding", sorted(set(ENCODINGS) - {"32FC1"}))
def test_padding_and_byte_order_change_nothing(encoding: str, is_bigendian: bool, padding: int) -> None:
    layout = ENCODINGS[encoding]
    samples = noise(6 * layout.rows_per_pair // 2, 8 * layout.channels, dtype=np.dtype(layout.dtype).type)
    assert np.array_equal(read(samples, encoding, padding, is_bigendian), read(samples, encoding))
    assert read(samples, encoding).std() > 10


@pytest.mark.parametrize("is_bigendian", [LITTLE, BIG])
def test_16_bits_are_read_in_the_messages_byte_order(is_bigendian: bool) -> None:
    pixels = read_pixels(
        bytes([200, 0, 0, 200]), height=1, width=2, encoding="mono16", step=4, is_bigendian=is_bigendian
    )
    assert pixels.data.flatten().tolist() == ([199, 1] if is_bigendian else [1, 199])


def test_16_bits_are_scaled_from_their_full_range() -> None:
    all_values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    assert np.array_equal(read(all_values, "mono16")[..., 0], np.rint(all_values / 257))
    colours = noise(5, 7 * 3, dtype=np.uint16)
    assert np.array_equal(read(colours, "rgb16"), np.rint(colours.reshape(5, 7, 3) / 257))
    assert np.array_equal(read(colours, "bgr16"), np.rint(colours.reshape(5, 7, 3)[..., ::-1] / 257))
    with_alpha = noise(5, 7 * 4, dtype=np.uint16)
    assert np.array_equal(read(with_alpha, "bgra16"), np.rint(with_alpha.reshape(5, 7, 4)[..., 2::-1] / 257))


@pytest.mark.parametrize(("minimum", "maximum"), [(0, 65535), (400, 9000), (7, 8), (65000, 65535)])
def test_depths_are_stretched_from_minimum_to_maximum(minimum: int, maximum: int) -> None:
    depth = np.random.default_rng(0).integers(minimum, maximum, (9, 13), np.uint16, endpoint=True)
    depth[0, :2] = minimum, maximum
    values = read(depth, "16UC1")[..., 0]
    assert values[0, :2].tolist() == [0, 255]
    assert np.abs(values - (depth.astype(float) - minimum) * 255 / (maximum - minimum)).max() < 0.51


@pytest.mark.parametrize("is_bigendian", [LITTLE, BIG])
@pytest.mark.parametrize(
    ("minimum", "maximum"), [(0.4, 9.5), (-3e-4, 7e-4), (1e6, 1e6 + 100), (-1e38, 1e38), (0, 1e-30)]
)
def test_floats_are_stretched_from_minimum_to_maximum(minimum: float, maximum: float, is_bigendian: bool) -> None:
    depth = np.random.default_rng(0).uniform(minimum, maximum, (9, 13)).astype(np.float32)
    depth[0, :2] = minimum, maximum
    values = read(depth, "32FC1", 4, is_bigendian)[..., 0]
    exact = depth.astype(float)
    low, high = exact.min(), exact.max()
    assert values[0, :2].tolist() == [0, 255]
    assert np.abs(values - (exact - low) * 255 / (high - low)).max() < 0.51


@pytest.mark.parametrize(
    ("dtype", "minimum", "maximum"),
    [
        (np.int8, -128, 127),
        (np.int16, -400, 9000),
        (np.int32, -(2**31), 2**31 - 1),
        (np.int32, 10**9, 10**9 + 100),
        (np.float64, -1e38, 1e38),
        (np.float64, 1e9, 1e9 + 1e-3),
        (np.float64, 0, 1e-300),
    ],
)
def test_other_numbers_are_stretched_too(dtype: type, minimum: float, maximum: float) -> None:
    """Within one half of a grey value, and a little for rounding: every number is exact in the 64 bits used."""
    share = np.random.default_rng(0).uniform(0, 1, (9, 13, 1))
    values = (minimum + share * (float(maximum) - minimum)).astype(dtype)
    values[0, :2, 0] = minimum, maximum
    grey = stretch_contrast(values)
    assert (grey.dtype, grey.shape, grey[0, :2, 0].tolist()) == (np.uint8, (9, 13, 1), [0, 255])
    exact = (values.astype(float) - minimum) / (float(maximum) - minimum) * 255
    assert np.abs(grey - exact).max() < 0.51
    assert grey.std() > 10


def test_64_bit_floats_may_be_no_numbers() -> None:
    row = np.array([[np.nan, -np.inf, 2, 3, 4, np.inf]])[..., None]
    assert stretch_contrast(row)[..., 0].tolist() == [[0, 0, 0, 128, 255, 255]]


def test_nan_and_infinities_become_black_or_white() -> None:
    nan, inf = np.nan, np.inf
    row = np.array([[nan, -inf, 2, 3, 4, inf]], np.float32)
    assert read(row, "32FC1")[..., 0].tolist() == [[0, 0, 0, 128, 255, 255]]


@pytest.mark.parametrize("value", [0, 3.5, np.nan, np.inf, -np.inf, 3e38])
def test_an_image_of_one_value_is_black(value: float) -> None:
    assert not read(np.full((4, 5), value, np.float32), "32FC1").any()
    if np.isfinite(value) and value < 65536:
        assert not read(np.full((4, 5), int(value), np.uint16), "16UC1").any()


def bt601(y: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Colours (..., 3) of brightness 16..235 and colour differences 16..240 by ITU-R BT.601; below 16 is black."""
    light, blue, red = (y.astype(float) - 16).clip(0) * 255 / 219, u.astype(float) - 128, v.astype(float) - 128
    scale = 255 / 224
    rgb = (
        light + scale * 1.402 * red,
        light - scale * (0.344136 * blue + 0.714136 * red),
        light + scale * 1.772 * blue,
    )
    return np.stack(rgb, axis=-1).clip(0, 255)


@pytest.mark.parametrize(("encoding", "order"), [("uyvy", "uyvy"), ("yuv422", "uyvy"), ("yuyv", "yuyv")])
def test_packed_yuv_is_converted_to_colours(encoding: str, order: str) -> None:
    packed = noise(6, 2 * 8)
    pairs = packed.reshape(6, 4, 4)
    u, v = (np.repeat(pairs[..., order.index(letter)], 2, axis=1) for letter in "uv")
    y = pairs[..., [place for place, letter in enumerate(order) if letter == "y"]].reshape(6, 8)
    assert np.abs(read(packed, encoding) - bt601(y, u, v)).max() < 2
    assert np.array_equal(read(packed, "yuv422_yuy2"), read(packed, "yuyv"))


@pytest.mark.parametrize(("encoding", "u_first"), [("nv12", True), ("nv21", False)])
def test_yuv_of_two_planes_is_converted_to_colours(encoding: str, u_first: bool) -> None:
    planes = noise(9, 8)  # six rows of brightness, three of colours
    pairs = planes[6:].reshape(3, 4, 2).repeat(2, axis=0).repeat(2, axis=1)
    u, v = (pairs[..., 0], pairs[..., 1]) if u_first else (pairs[..., 1], pairs[..., 0])
    assert np.abs(read(planes, encoding, padding=3) - bt601(planes[:6], u, v)).max() < 2


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_a_mosaic_becomes_the_colours_of_the_scene(pattern: str, bits: int) -> None:
    rows, columns = np.mgrid[:11, :15]
    # Interpolation restores planes exactly. Each colour has its own slope and level.
    picture = np.stack((180 + 4 * columns, 90 + 6 * rows, 20 + 3 * columns + 2 * rows), axis=-1)
    channel = np.array(["rgb".index(letter) for letter in pattern]).reshape(2, 2)
    mosaic = np.take_along_axis(picture, channel[rows % 2, columns % 2][..., None], axis=2)[..., 0]
    mosaic = (mosaic * (257 if bits == 16 else 1)).astype(np.uint16 if bits == 16 else np.uint8)
    values = read(mosaic, f"bayer_{pattern}{bits}", padding=2)
    assert np.abs(values - picture)[1:-1, 1:-1].max() <= 1
