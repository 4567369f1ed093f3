"""The images of a ROS 2 bag as a source, without ROS."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ImageError, SourceError
from split_infer_ros.images.compressed import read_compressed
from split_infer_ros.images.encodings import RGB, Pixels, read_pixels
from split_infer_ros.sources.picture import Picture

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"


def split_place(place: str) -> tuple[Path, str | None]:
    """``PATH[:TOPIC]`` as path and topic (None: not said); a path that exists may have colons itself."""
    path = Path(place).expanduser()
    head, colon, topic = place.rpartition(":")
    if not colon or path.exists():
        return path, None
    return Path(head).expanduser(), f"/{topic.lstrip('/')}" if topic else None


class BagSource:
    """The images of one topic of a recording, in its order, with the headers that they were recorded with.

    Args:
        path: of a bag's folder, or of one .mcap or .db3 file.
        topic: of sensor_msgs/Image or CompressedImage; None: the only one that there is.
        loop: begin again after the last.
        warn: is given a sentence for each message that cannot be read, which is then passed over; None raises instead.

    Raises:
        SourceError: no such bag, it cannot be read, or it has no such topic or several to choose from (the error
            lists them); while reading: a message (with ``warn``, every message) is unreadable, or the bag breaks off.
    """

    def __init__(self, path: Path, topic: str | None, loop: bool, warn: Callable[[str], None] | None) -> None:
        try:
            from rosbags.rosbag2 import Reader
            from rosbags.typesys import Stores, get_typestore
        except ImportError:
            raise SourceError("bag:PATH needs the Python package rosbags; pip install rosbags.") from None
        if not path.exists():
            raise SourceError(f"The bag {path} does not exist; bag:PATH takes a bag's folder or an .mcap file.")
        self._path, self._loop, self._warn = path, loop, warn
        self._index, self._is_fruitful = 0, False
        self._types = get_typestore(Stores.LATEST)
        try:
            self._reader: Any = Reader(path)
            self._reader.open()
        except Exception as error:  # what is no bag makes the reader raise whatever its parts raise
            raise SourceError(f"{path} cannot be opened as a ROS 2 bag: {error}") from error
        try:
            self._connections = _connections_of(path, self._reader.connections, topic)
        except SourceError:
            self._reader.close()
            raise
        self._topic = str(self._connections[0].topic)
        self._messages = self._read()

    def __iter__(self) -> BagSource:
        return self

    def __next__(self) -> Picture:
        while True:
            try:
                kind, content = next(self._messages)
            except (StopIteration, SourceError):
                raise
            except Exception as error:  # as when opening it
                raise SourceError(f"The bag {self._path} breaks off: {error}") from error
            try:
                picture = self._picture(kind, content)
            except ImageError as error:
                sentence = f"Image {self._index} of {self._topic} in {self._path} cannot be read: {error}"
                if self._warn is None:
                    raise SourceError(sentence) from error
                self._warn(sentence)
            else:
                self._is_fruitful = True
                return picture
            finally:
                self._index += 1

    def close(self) -> None:
        """Closes the files."""
        self._messages.close()
        if self._reader.is_open:
            self._reader.close()

    def _read(self) -> Generator[tuple[str, bytes], None, None]:
        """Type and content of each message."""
        while True:
            self._index, self._is_fruitful = 0, False
            for connection, _, content in self._reader.messages(self._connections):
                yield connection.msgtype, content
            if not self._is_fruitful:
                raise SourceError(f"None of the images of {self._topic} in {self._path} can be read.")
            if not self._loop:
                return

    def _picture(self, kind: str, content: bytes) -> Picture:
        try:
            message: Any = self._types.deserialize_cdr(content, kind)
        except Exception as error:  # bytes that are no such message fail in many ways
            raise ImageError(DropReason.CORRUPT_IMAGE, f"It is no {kind}: {error}.") from error
        if kind == IMAGE:
            size, big = (message.height, message.width), bool(message.is_bigendian)
            pixels = read_pixels(message.data, *size, message.encoding, message.step, big)
        else:
            pixels = read_compressed(message.data, message.format)
        image, encoding = _colours(pixels)
        stamp = message.header.stamp.sec, message.header.stamp.nanosec
        return Picture(image, encoding, f"message {self._index}", stamp=stamp, frame_id=message.header.frame_id)


def _connections_of(path: Path, connections: list[Any], topic: str | None) -> list[Any]:
    """Those of the topic; of the only topic with images if none is named."""
    images = [connection for connection in connections if connection.msgtype in (IMAGE, COMPRESSED)]
    filled = {connection.topic: connection.msgtype for connection in images if connection.msgcount}
    there = "; ".join(f"{name} ({kind.rpartition('/')[2]})" for name, kind in sorted(filled.items())) or "none"
    if topic is None:
        if len(filled) != 1:
            raise SourceError(
                f"The bag {path} has {len(filled)} topics with images; bag:PATH:TOPIC names one of: {there}."
            )
        (topic,) = filled
    if topic not in filled:
        raise SourceError(f"The bag {path} has no images of {topic}; its topics with images: {there}.")
    return [connection for connection in images if connection.topic == topic]


def _colours(pixels: Pixels) -> tuple[NDArray[np.uint8], Literal["rgb8", "bgr8"]]:
    """The image as a source gives it: three channels, contiguous."""
    image = pixels.data.numpy()
    image = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else np.ascontiguousarray(image[..., :3])
    return image, "rgb8" if pixels.rgb == RGB else "bgr8"
