from __future__ import annotations

import array
import random
import re
import struct
import zlib
from typing import Any

import cv2
import numpy as np
import pytest
from damaged_images import FORMATS, damaged_image, encode, photograph, png, real_images
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from split_infer_ros.errors import ImageError
from split_infer_ros.images import compressed, containers
from split_infer_ros.images.compressed import read_compressed
from split_infer_ros.images.containers import MAX_SCANS
from split_infer_ros.images.encodings import Pixels, read_pixels
from split_infer_ros.images.sizes import MAX_PIXELS

SCAN, END = b"\xff\xda", b"\xff\xd9"


def rgb(pixels: Pixels) -> np.ndarray:
    return pixels.data[..., list(pixels.rgb)]


def png_header(height: int, width: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n\0\0\0\r" + header + struct.pack(">I", zlib.crc32(header))


def jpeg_of_size(height: int, width: int) -> bytes:
    """A small JPEG image whose header states another size."""
    data = bytearray(encode(photograph(), "JPEG"))
    place = data.index(b"\xff\xc0")
    data[place + 5 : place + 9] = struct.pack(">HH", height, width)
    return bytes(data)


# ---- Images that are read ----


@pytest.mark.parametrize("container", [bytes, bytearray, lambda b: array.array("B", b)])
@pytest.mark.parametrize("format", ["jpeg", "rgb8; jpeg compressed bgr8", "bgr8; jpeg compressed bgr8", "jpg", ""])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_is_read(format: str, container: Any, progressive: bool) -> None:
    pixels = read_compressed(container(encode(photograph(), "JPEG", quality=95, progressive=progressive)), format)
    assert (pixels.height, pixels.width, pixels.data.dtype) == (60, 80, np.uint8)
    assert np.abs(rgb(pixels).astype(int) - photograph()).mean() < 4


@pytest.mark.parametrize("format", ["png", "rgb8; png compressed bgr8", "", "jpeg"])  # the data says what it is
def test_a_png_is_read(format: str) -> None:
    assert np.array_equal(rgb(read_compressed(encode(photograph(), "PNG"), format)), photograph())


@pytest.mark.parametrize(
    ("mode", "channels"), [("L", 1), ("1", 1), ("LA", 4), ("RGB", 3), ("RGBA", 4), ("P", 3)], ids=lambda v: str(v)
)
def test_a_png_of_every_mode_is_read(mode: str, channels: int) -> None:
    image = Image.fromarray(photograph()).convert(mode)
    pixels = read_compressed(encode(image, "PNG"), "png")
    assert pixels.data.shape == (60, 80, channels)
    assert np.array_equal(rgb(pixels), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_a_jpeg_of_every_mode_is_read(mode: str) -> None:
    image = Image.fromarray(photograph()).convert(mode)
    pixels = read_compressed(encode(image, "JPEG", quality=95), "jpeg")
    assert np.abs(rgb(pixels).astype(int) - np.asarray(image.convert("RGB"))).mean() < 6


def mosaic(dtype: type) -> np.ndarray:
    """A Bayer mosaic (24, 32) of smooth colours."""
    rows, columns = np.mgrid[:24, :32]
    values = 40 + 4 * rows + 2 * columns + 60 * (rows % 2) - 30 * (columns % 2)
    return values.astype(dtype) * (257 if dtype is np.uint16 else 1)


@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("stored", ["; png compressed ", "; png compressed", "; png compressed {original}", ""])
def test_a_mosaic_in_a_png_is_read_like_the_raw_one(pattern: str, dtype: type, stored: str) -> None:
    image, bits = mosaic(dtype), 8 * np.dtype(dtype).itemsize
    original = f"bayer_{pattern}{bits}"
    raw = read_pixels(image.tobytes(), height=24, width=32, encoding=original, step=32 * bits // 8)
    png_file = cv2.imencode(".png", image)[1].tobytes()
    pixels = read_compressed(png_file, original + stored.format(original=original))
    assert pixels.rgb == raw.rgb
    assert np.array_equal(pixels.data, raw.data), "bit for bit: the samples are the same"


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("stored", ["; jpeg compressed ", "; jpeg compressed bayer_rggb{bits}"])
def test_a_mosaic_in_a_jpeg_is_read_like_one_of_8_bits(bits: int, stored: str) -> None:
    jpeg = cv2.imencode(".jpg", mosaic(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 100])[1].tobytes()
    decoded = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_UNCHANGED)
    raw = read_pixels(decoded.tobytes(), height=24, width=32, encoding="bayer_rggb8", step=32)
    pixels = read_compressed(jpeg, f"bayer_rggb{bits}" + stored.format(bits=bits))
    assert np.array_equal(pixels.data, raw.data), "bit for bit: the same decoder made the samples"


def test_what_the_sender_demosaiced_stays_as_it_is() -> None:
    grey = mosaic(np.uint8)
    png_file = cv2.imencode(".png", grey)[1].tobytes()
    pixels = read_compressed(png_file, "bayer_rggb8; jpeg compressed mono8")
    assert np.array_equal(pixels.data[..., 0], grey)
    assert pixels.rgb == (0, 0, 0)
    coloured = read_compressed(encode(photograph(), "PNG"), "bayer_rggb8; png compressed bgr8")
    assert np.array_equal(rgb(coloured), photograph())


def test_a_mosaic_that_is_too_small_is_refused() -> None:
    png_file = cv2.imencode(".png", np.zeros((2, 5), np.uint8))[1].tobytes()
    with pytest.raises(ImageError, match="5x2 pixels cannot be bayer_rggb8") as refusal:
        read_compressed(png_file, "bayer_rggb8; png compressed ")
    assert refusal.value.reason.value == "bad_size"


def test_a_png_of_16_bits_is_scaled_from_its_full_range() -> None:
    colours = np.random.default_rng(0).integers(0, 65536, (5, 7, 4), np.uint16)
    for samples in (colours, colours[..., :3]):
        pixels = read_compressed(png(samples), "bgra16; png compressed bgr16")
        assert np.array_equal(rgb(pixels), np.rint(colours[..., 2::-1] / 257))
    grey = colours[..., 0]
    assert np.array_equal(rgb(read_compressed(png(grey), "mono16; png compressed "))[..., 1], np.rint(grey / 257))


def test_a_png_of_depths_is_stretched() -> None:
    depth = np.array([[500, 1500, 2500]], np.uint16)
    assert read_compressed(png(depth), "16UC1; png compressed ").data.flatten().tolist() == [0, 128, 255]
    assert read_compressed(png(depth), "png").data.flatten().tolist() == [2, 6, 10]


@pytest.mark.parametrize("format", ["bgr8; png compressed rgb8", "rgb16; png compressed rgb16"])
def test_red_and_blue_may_be_stored_swapped(format: str) -> None:
    stored = encode(np.ascontiguousarray(photograph()[..., ::-1]), "PNG")
    assert np.array_equal(rgb(read_compressed(stored, format)), photograph())


def test_a_rotation_in_exif_is_not_applied() -> None:
    rotated = Image.Exif()
    rotated[0x0112] = 6  # by 90 degrees clockwise
    pixels = read_compressed(encode(photograph(), "JPEG", exif=rotated), "jpeg")
    assert (pixels.height, pixels.width) == (60, 80)


def test_bytes_after_the_end_are_ignored() -> None:
    # Drivers pad their buffers.
    data = encode(photograph(), "JPEG")
    assert np.array_equal(rgb(read_compressed(data + bytes(5000), "jpeg")), rgb(read_compressed(data, "jpeg")))


# ---- Images that are refused ----


def refusal(data: bytes, format: str = "", max_pixels: int = MAX_PIXELS) -> ImageError:
    with pytest.raises(ImageError) as caught:
        read_compressed(data, format, max_pixels)
    assert str(caught.value).endswith(".")
    return caught.value


@pytest.fixture
def undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*_: object) -> None:
        pytest.fail("the image was decoded")

    monkeypatch.setattr(compressed.cv2, "imdecode", decode)


@pytest.mark.usefixtures("undecoded")
@pytest.mark.parametrize(
    ("data", "size"),
    [
        (png_header(30000, 30000), "30000x30000"),
        (png_header(2**31 - 1, 2**31 - 1), "2147483647x"),
        (jpeg_of_size(65500, 65500), "65500x65500"),
        (jpeg_of_size(8000, 6000), "6000x8000"),
    ],
    ids=["png", "greatest png", "jpeg", "8000x6000"],
)
def test_a_bomb_is_refused_by_its_header(data: bytes, size: str) -> None:
    error = refusal(data)
    assert error.reason == "too_large"
    assert size in str(error)


def chunk(kind: bytes, content: bytes, length: int | None = None) -> bytes:
    length = len(content) if length is None else length
    return struct.pack(">I", length) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@pytest.mark.usefixtures("undecoded")
@pytest.mark.parametrize("kind", [b"IDAT", b"tEXt", b"acTL"])
@pytest.mark.parametrize("length", [2**32 - 1, 2**31 - 1, 1000])
def test_a_png_chunk_with_a_false_length_is_not_decoded(kind: bytes, length: int) -> None:
    # A length of 4 GB cost OpenCV 5 seconds and 4 GB.
    assert refusal(png_header(60, 80) + chunk(kind, b"some", length) + chunk(b"IEND", b"")).reason == "corrupt_image"


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_the_decoder_gets_only_what_pixels_need(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    decode = cv2.imdecode

    def spy(data: np.ndarray, flags: int) -> np.ndarray | None:
        decoded.append(data.tobytes())
        return decode(data, flags)

    monkeypatch.setattr(compressed.cv2, "imdecode", spy)
    plain = encode(photograph(), kind)
    rotation = Image.Exif()
    rotation[0x0112] = 6
    annotated = encode(photograph(), kind, exif=rotation, icc_profile=bytes(3000), comment=b"a comment")
    if kind == "PNG":  # animation, and another header behind the first one
        annotated = annotated.replace(plain[8:33], plain[8:33] + chunk(b"acTL", bytes(8)) + chunk(b"fcTL", bytes(26)))
        annotated = annotated.replace(chunk(b"IEND", b""), png_header(30000, 30000)[8:] + chunk(b"IEND", b""))
    assert len(annotated) > len(plain)
    assert np.array_equal(rgb(read_compressed(annotated, "")), rgb(read_compressed(plain, "")))
    assert decoded == [plain, plain]


def test_the_limit_on_the_size_can_be_set() -> None:
    for kind in ("JPEG", "PNG"):
        data = encode(photograph(), kind)
        assert read_compressed(data, "", max_pixels=60 * 80).height == 60
        assert refusal(data, max_pixels=60 * 80 - 1).reason == "too_large"


@pytest.mark.parametrize("kind", ["progressive", "planes one by one"])
def test_a_jpeg_of_too_many_scans_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(photograph(), "JPEG", progressive=kind == "progressive")
    if kind == "progressive":
        first, second = [found.start() for found in re.finditer(SCAN, data)][:2]
        head, scan = data[:first], data[first:second]
    else:
        head, scan = data[: data.index(SCAN)], SCAN + b"\0\x08\x01\x01\0\0\x3f\0\0"
    assert refusal(head + scan * (MAX_SCANS + 1) + END).reason == "too_large"
    monkeypatch.setattr(containers, "MAX_SCANS", MAX_SCANS + 1)
    read_compressed(head + scan * (MAX_SCANS + 1) + END, "jpeg")


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("kept", [0.02, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_image_is_refused(kind: str, kept: float) -> None:
    data = encode(photograph(200, 300), kind)
    assert refusal(data[: int(kept * len(data))], kind.lower()).reason == "corrupt_image"


def test_the_end_of_a_preview_does_not_end_the_image() -> None:
    preview = encode(photograph(6, 8), "JPEG")
    data = encode(photograph(), "JPEG", comment=preview)
    assert read_compressed(data, "jpeg").height == 60
    assert refusal(data[:-100], "jpeg").reason == "corrupt_image"


@pytest.mark.parametrize(
    ("data", "format", "reason"),
    [
        (b"", "jpeg", "empty_image"),
        (b"hello, world", "jpeg", "corrupt_image"),
        (b"hello, world", "rgb8; PNG compressed bgr8", "corrupt_image"),
        (b"hello, world", "", "corrupt_image"),
        (b"\xff\xd8\xff", "", "corrupt_image"),
        (b"\xff\xd8" + END, "", "corrupt_image"),
        (b"\xff\xd8" + b"\xff" * 100_000, "", "corrupt_image"),
        (b"\xff\xd8" + b"\xff\xe0\0\x02" * 100_000, "", "corrupt_image"),
        (png_header(5, 5), "png", "corrupt_image"),
        (png_header(5, 5)[:20], "png", "corrupt_image"),
        (png_header(0, 5), "png", "empty_image"),
        (jpeg_of_size(0, 5), "jpeg", "empty_image"),
        (b"II*\0", "mono16; tiff compressed ", "unknown_format"),
        (b"\0\0\0\1", "h264", "unknown_format"),
        (bytes(12) + png(np.ones((4, 4), np.uint16)), "16UC1; compressedDepth png", "unknown_format"),
        (b"", "32FC1; compressedDepth rvl", "unknown_format"),
    ],
)
def test_unreadable_images_are_refused_with_a_reason(data: bytes, format: str, reason: str) -> None:
    assert refusal(data, format).reason == reason


def test_an_error_of_the_decoder_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*_: object) -> None:
        raise cv2.error("out of memory")

    monkeypatch.setattr(compressed.cv2, "imdecode", decode)
    assert refusal(encode(photograph(), "JPEG")).reason == "corrupt_image"


def test_depth_is_refused_with_what_to_send_instead() -> None:
    error = refusal(b"", "16UC1; compressedDepth")
    assert "compressed_depth_image_transport" in str(error)
    assert "raw image" in str(error)


# ---- Any bytes ----


def outcome(data: bytes, format: str) -> str:
    """``read``, or the reason of the refusal; any other exception fails the test."""
    try:
        pixels = read_compressed(data, format, max_pixels=1_000_000)
    except ImageError as error:
        return error.reason
    assert pixels.data.dtype == np.uint8
    assert pixels.height * pixels.width <= 1_000_000
    rgb(pixels).sum()  # reads every byte
    return "read"


def fuzz(count: int, seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    outcomes: dict[str, int] = {}
    for _ in range(count):
        result = outcome(damaged_image(rng), rng.choice(FORMATS))
        outcomes[result] = outcomes.get(result, 0) + 1
    return outcomes


def test_damaged_images_are_read_or_refused() -> None:
    outcomes = fuzz(400, seed=1)
    assert set(outcomes) <= {"read", "corrupt_image", "too_large", "empty_image"}
    assert min(outcomes[name] for name in ("read", "corrupt_image", "too_large")) > 2, outcomes


BEGINNINGS = st.sampled_from(
    (b"", b"\xff\xd8\xff", *(image[:kept] for image in real_images() for kept in (20, 40, 200)))
)


@settings(max_examples=300)
@given(
    beginning=BEGINNINGS, rest=st.binary(max_size=300), format=st.one_of(st.sampled_from(FORMATS), st.text(max_size=20))
)
def test_any_bytes_are_read_or_refused(beginning: bytes, rest: bytes, format: str) -> None:
    assert outcome(beginning + rest, format)
