from __future__ import annotations

import io
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from split_infer_ros.errors import SourceError
from split_infer_ros.images.encodings import GREY, Encoding
from split_infer_ros.sources import Picture, open_source
from split_infer_ros.sources.bag import BagSource

pytest.importorskip("rosbags")

from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

IMAGE, COMPRESSED, STRING = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage", "std_msgs/msg/String"
TYPES = get_typestore(Stores.LATEST)
T: Any = TYPES.types

COLOURS = [[10, 20, 30], [40, 50, 60], [70, 80, 90]]


def header(index: int) -> Any:
    stamp = T["builtin_interfaces/msg/Time"](sec=1000 + index, nanosec=7)
    return T["std_msgs/msg/Header"](stamp=stamp, frame_id="left_eye")


def image(index: int, pixels: np.ndarray, encoding: str = "rgb8", is_bigendian: int = 0) -> Any:
    data = np.ascontiguousarray(pixels).view(np.uint8)
    height, width = pixels.shape[:2]
    step = data.size // height
    return T[IMAGE](header(index), height, width, encoding, is_bigendian, step, data.reshape(-1))


def compressed(index: int, data: bytes, format: str = "png") -> Any:
    return T[COMPRESSED](header(index), format, np.frombuffer(data, np.uint8))


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def plain(colour: list[int]) -> np.ndarray:
    return np.broadcast_to(np.array(colour, np.uint8), (4, 6, 3))


def write(path: Path, topics: dict[str, list[Any]], plugin: str = "MCAP", mode: str | None = None) -> Path:
    """Writes a bag of these messages, a tenth of a second apart; the log's time differs from that of the headers."""
    writer = Writer(path, version=9, storage_plugin=StoragePlugin[plugin])
    if mode:
        writer.set_compression(CompressionMode[mode], CompressionFormat.ZSTD)
    with writer:
        for topic, messages in topics.items():
            kind = messages[0].__msgtype__ if messages else IMAGE
            connection = writer.add_connection(topic, kind, typestore=TYPES)
            for index, message in enumerate(messages):
                data = message if isinstance(message, bytes) else TYPES.serialize_cdr(message, kind)
                writer.write(connection, 5 * 10**18 + index * 10**8, data)
    return path


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    messages = [image(index, plain(colour)) for index, colour in enumerate(COLOURS)]
    texts = [T[STRING](data="hello")]
    return write(tmp_path / "recording", {"/eye/image": messages, "/words": texts})


def described(pictures: list[Picture]) -> list[tuple[str, list[int], tuple[int, int] | None, str | None]]:
    for picture in pictures:
        assert picture.image.shape == (4, 6, 3)
        assert picture.image.dtype == np.uint8
        assert picture.image.flags.c_contiguous
        assert (picture.image == picture.image[0, 0]).all()
    colours = [p.image[0, 0] if p.encoding == "rgb8" else p.image[0, 0, ::-1] for p in pictures]
    return [(p.name, colour.tolist(), p.stamp, p.frame_id) for p, colour in zip(pictures, colours, strict=True)]


ALL = [(f"message {index}", colour, (1000 + index, 7), "left_eye") for index, colour in enumerate(COLOURS)]


@pytest.mark.parametrize(
    ("plugin", "mode"),
    [
        ("MCAP", None),
        ("MCAP", "MESSAGE"),
        ("MCAP", "FILE"),
        ("MCAP", "STORAGE"),
        ("SQLITE3", None),
        ("SQLITE3", "MESSAGE"),
        ("SQLITE3", "FILE"),
    ],
)
def test_images_come_in_order_with_their_headers(tmp_path: Path, plugin: str, mode: str | None) -> None:
    messages = [image(index, plain(colour)) for index, colour in enumerate(COLOURS)]
    path = write(tmp_path / "recording", {"/image": messages}, plugin, mode)
    assert described(list(open_source(f"bag:{path}"))) == ALL


@pytest.mark.parametrize(("plugin", "suffix"), [("MCAP", "mcap"), ("SQLITE3", "db3")])
def test_a_bare_file_is_a_bag(tmp_path: Path, plugin: str, suffix: str) -> None:
    messages = [image(index, plain(colour)) for index, colour in enumerate(COLOURS)]
    path = write(tmp_path / "recording", {"/image": messages}, plugin)
    (file,) = path.glob(f"*.{suffix}")
    bare = file.rename(tmp_path / f"alone.{suffix}")
    assert described(list(open_source(f"bag:{bare}"))) == ALL


def test_every_encoding_is_read(tmp_path: Path) -> None:
    bgr, grey = plain(COLOURS[0])[..., ::-1], np.full((4, 6), 99, np.uint8)
    alpha = np.dstack((plain(COLOURS[0]), grey))
    big = np.full((4, 6), 0x6300, ">u2")
    messages = [
        image(0, bgr, "bgr8"),
        image(1, alpha, "rgba8"),
        image(2, grey, "mono8"),
        image(3, big, "mono16", is_bigendian=1),
    ]
    path = write(tmp_path / "recording", {"/image": messages})
    colours = [colour for _, colour, *_ in described(list(open_source(f"bag:{path}")))]
    assert colours == [COLOURS[0], COLOURS[0], [99] * 3, [99] * 3]


def test_other_encodings_are_asked_of_the_finder(tmp_path: Path) -> None:
    path = write(tmp_path / "recording", {"/image": [image(0, np.full((4, 6), 77, np.uint8), "8U")]})
    pictures = list(open_source(f"bag:{path}", find_encoding=lambda name: {"8U": Encoding(1, GREY)}[name]))
    assert [colour for _, colour, *_ in described(pictures)] == [[77] * 3]
    with pytest.raises(SourceError, match="Image encoding '8U' is not supported; send one of"):
        list(open_source(f"bag:{path}"))


def test_compressed_images_are_read(tmp_path: Path) -> None:
    messages = [compressed(index, png(plain(colour))) for index, colour in enumerate(COLOURS)]
    path = write(tmp_path / "recording", {"/image/compressed": messages})
    assert described(list(open_source(f"bag:{path}"))) == ALL


def test_loop_begins_again(recording: Path) -> None:
    source = open_source(f"bag:{recording}", loop=True)
    assert described(list(islice(source, 5))) == ALL + ALL[:2]
    source.close()
    source.close()
    assert list(source) == []


def test_a_source_can_be_read_on_another_thread(recording: Path, tmp_path: Path) -> None:
    messages = [image(index, plain(colour)) for index, colour in enumerate(COLOURS)]
    path = write(tmp_path / "other", {"/image": messages}, "SQLITE3")
    source = open_source(f"bag:{path}", loop=True)
    pictures: list[Picture] = []
    thread = threading.Thread(target=lambda: pictures.extend(islice(source, 4)))
    thread.start()
    thread.join()
    source.close()
    assert described(pictures) == [*ALL, ALL[0]]


# ---- Topics ----


@pytest.fixture
def two_eyes(tmp_path: Path) -> Path:
    topics = {
        "/left": [image(0, plain(COLOURS[0]))],
        "/right/compressed": [compressed(0, png(plain(COLOURS[1])))],
        "/closed": [],
        "/words": [T[STRING](data="hello")],
    }
    return write(tmp_path / "two:eyes", topics)


@pytest.mark.parametrize(
    ("topic", "colour"), [("/left", 0), ("left", 0), ("/right/compressed", 1), ("right/compressed", 1)]
)
def test_a_topic_can_be_named(two_eyes: Path, topic: str, colour: int) -> None:
    (picture,) = open_source(f"bag:{two_eyes}:{topic}")
    assert described([picture])[0][1] == COLOURS[colour]


@pytest.mark.parametrize(
    ("ending", "words"), [("", "has 2 topics with images"), (":/words", "no images of /words"), (":/closed", "/closed")]
)
def test_topics_to_choose_from_are_listed(two_eyes: Path, ending: str, words: str) -> None:
    with pytest.raises(SourceError, match=words) as error:
        open_source(f"bag:{two_eyes}{ending}")
    assert "/left (Image); /right/compressed (CompressedImage)." in str(error.value)


def test_a_bag_without_images_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "recording", {"/words": [T[STRING](data="hello")]})
    with pytest.raises(SourceError, match=r"has 0 topics with images.*: none\."):
        open_source(f"bag:{path}")


# ---- Bags that cannot be read ----


def damaged(tmp_path: Path) -> Path:
    """Writes three images: one of an unknown encoding, a good one, and bytes that are no message."""
    messages = [image(0, plain(COLOURS[0]), "rgb9"), image(1, plain(COLOURS[1])), b"\0\1\0\0\xff\xff"]
    return write(tmp_path / "recording", {"/image": messages})


def test_an_unreadable_image_raises(tmp_path: Path) -> None:
    source = open_source(f"bag:{damaged(tmp_path)}")
    with pytest.raises(SourceError, match=r"Image 0 of /image in .* cannot be read: Image encoding 'rgb9'"):
        next(source)
    assert next(source).name == "message 1"
    with pytest.raises(SourceError, match="Image 2 of /image"):
        next(source)
    assert list(source) == []


def test_an_unreadable_image_is_skipped_with_a_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    source = open_source(f"bag:{damaged(tmp_path)}", warn=warnings.append)
    assert [picture.name for picture in source] == ["message 1"]
    assert len(warnings) == 2


def test_a_loop_over_unreadable_images_ends(tmp_path: Path) -> None:
    messages = [image(index, plain(COLOURS[0]), "rgb9") for index in range(2)]
    path = write(tmp_path / "recording", {"/image": messages})
    warnings: list[str] = []
    source = open_source(f"bag:{path}", loop=True, warn=warnings.append)
    with pytest.raises(SourceError, match="None of the images of /image"):
        next(source)
    assert len(warnings) == 2
    assert list(source) == []


def test_a_missing_bag_is_refused(tmp_path: Path) -> None:
    for ending in ("", ":/image"):
        with pytest.raises(SourceError, match="none does not exist"):
            open_source(f"bag:{tmp_path / 'none'}{ending}")


@pytest.mark.parametrize("name", ["notes.txt", "empty.mcap", "empty.db3", "wrong.mcap", "wrong.db3", "folder"])
def test_a_file_that_is_no_bag_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"" if name.startswith("empty") else b"no bag at all" * 100)
    with pytest.raises(SourceError, match=f"{name} cannot be opened as a ROS 2 bag"):
        open_source(f"bag:{path}")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """The file of a bag of several chunks."""
    rng = np.random.default_rng(0)
    messages = [image(index, rng.integers(0, 256, (200, 300, 3), np.uint8)) for index in range(20)]
    (file,) = write(tmp_path / "recording", {"/image": messages}, mode="STORAGE").glob("*.mcap")
    return file


def test_a_damaged_bag_breaks_off(large: Path) -> None:
    data = bytearray(large.read_bytes())
    begin, end = len(data) // 4, 3 * len(data) // 4
    data[begin:end] = bytes(end - begin)
    large.write_bytes(data)
    source = open_source(f"bag:{large.parent}", loop=True)
    with pytest.raises(SourceError, match=f"The bag {large.parent} breaks off: "):
        list(islice(source, 21))
    assert list(source) == []


@pytest.mark.parametrize("lost", [20, 100, 700_000, 2_000_000])
@pytest.mark.parametrize("is_folder", [False, True])
def test_an_unfinished_file_is_read_up_to_its_end(large: Path, lost: int, is_folder: bool) -> None:
    expected = list(open_source(f"bag:{large}"))
    large.write_bytes(large.read_bytes()[:-lost])
    if is_folder:
        (large.parent / "metadata.yaml").unlink()  # a recorder writes it last
    warnings: list[str] = []
    found = list(open_source(f"bag:{large.parent if is_folder else large}", warn=warnings.append))
    assert (len(found) == 20) == (lost <= 100)
    assert len(found) > 5
    for one, other in zip(found, expected, strict=False):
        assert (one.name, one.stamp, one.frame_id) == (other.name, other.stamp, other.frame_id)
        assert np.array_equal(one.image, other.image)
    (warning,) = warnings
    assert f"{large} is not finished, so it is read as far as it goes" in warning
    assert "'mcap recover" in warning


def test_an_unfinished_bag_of_several_files_says_what_to_do(large: Path) -> None:
    (large.parent / "other.mcap").write_bytes(large.read_bytes())
    large.write_bytes(large.read_bytes()[:-100])
    with pytest.raises(SourceError, match=f"{large.name} is not finished; 'mcap recover' finishes it.*bag reindex"):
        open_source(f"bag:{large.parent}")
    (large.parent / "metadata.yaml").unlink()
    large.unlink()
    (large.parent / "third.mcap").touch()
    with pytest.raises(SourceError, match=r"it has 2 files and no metadata\.yaml.*'ros2 bag reindex"):
        open_source(f"bag:{large.parent}")


@pytest.mark.parametrize(("plugin", "suffix"), [("MCAP", "mcap"), ("SQLITE3", "db3")])
def test_one_file_of_a_bag_of_compressed_messages_is_read(tmp_path: Path, plugin: str, suffix: str) -> None:
    messages = [image(index, plain(colour)) for index, colour in enumerate(COLOURS)]
    folder = write(tmp_path / "recording", {"/image": messages}, plugin, "MESSAGE")
    expected = described(list(open_source(f"bag:{folder}")))
    (file,) = folder.glob(f"*.{suffix}")
    assert described(list(open_source(f"bag:{file}"))) == expected
    assert len(expected) == len(COLOURS)


def test_damaged_compressed_messages_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "recording", {"/image": [image(0, plain(COLOURS[0])), b"\x28\xb5\x2f\xfd no frame"]})
    with pytest.raises(SourceError, match=r"Image 1 of /image in .* cannot be read: It is no sensor_msgs/msg/Image"):
        list(open_source(f"bag:{folder}"))


def test_one_compressed_file_says_what_to_do(tmp_path: Path) -> None:
    folder = write(tmp_path / "recording", {"/image": [image(0, plain(COLOURS[0]))]}, mode="FILE")
    assert len(list(open_source(f"bag:{folder}"))) == 1
    (file,) = folder.glob("*.zstd")
    with pytest.raises(SourceError, match=r"takes the folder with its metadata\.yaml, or the file after 'zstd -d"):
        open_source(f"bag:{file}")


def test_a_missing_rosbags_is_named(monkeypatch: pytest.MonkeyPatch, recording: Path) -> None:
    monkeypatch.setitem(sys.modules, "rosbags.rosbag2", None)
    with pytest.raises(SourceError, match="pip install rosbags"):
        BagSource.open(recording, topic=None, loop=False, warn=None)
