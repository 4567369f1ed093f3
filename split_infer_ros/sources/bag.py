"""The images of a ROS 2 bag as a source that needs no ROS."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ImageError, SourceError
from split_infer_ros.images.compressed import read_compressed
from split_infer_ros.images.encodings import RGB, FindEncoding, Pixels, read_message
from split_infer_ros.runtime.user_files import exists, user_path
from split_infer_ros.sources.bag_files import decompressed, storage_of
from split_infer_ros.sources.picture import Picture

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"


def split_location(location: str) -> tuple[Path, str | None]:
    """Splits ``PATH[:TOPIC]`` into the path and the topic, which is None if the location names none.

    If the whole location is a path that exists, it is the path, even if it has colons.
    """
    path = user_path(location)
    head, colon, topic = location.rpartition(":")
    if not colon or exists(path):
        return path, None
    return user_path(head), f"/{topic.lstrip('/')}" if topic else None


class BagSource:
    """Yields the images of one topic of a recording, in order and with their recorded headers.

    Args:
        path: the bag's path, for error messages.
        reader: an open reader of the bag.
        connections: the reader's connections of one topic.
        types: the type store of ``rosbags``, which deserialises messages.
        loop: whether to begin again after the last image.
        warn, find_encoding: see ``open``.
    """

    def __init__(
        self,
        path: Path,
        reader: Any,
        *,
        connections: Sequence[Any],
        types: Any,
        loop: bool,
        warn: Callable[[str], None] | None,
        find_encoding: FindEncoding | None,
    ) -> None:
        self._path, self._reader, self._connections, self._types = path, reader, connections, types
        self._loop, self._warn, self._find_encoding = loop, warn, find_encoding
        self._topic = str(connections[0].topic)
        self._index, self._has_read_one = 0, False
        self._messages = self._read()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        topic: str | None,
        loop: bool,
        warn: Callable[[str], None] | None,
        find_encoding: FindEncoding | None = None,
    ) -> BagSource:
        """Opens a recording.

        Args:
            path: the folder of a bag, or one .mcap or .db3 file.
            topic: a topic of sensor_msgs/Image or CompressedImage. None takes the only topic with images.
            loop: whether to begin again after the last image.
            warn: called with a sentence for each unreadable message, which is then skipped. If None, such a message
                raises SourceError when it is read.
            find_encoding: finds encodings of raw images that the package does not know. If None, they are unreadable.

        Raises:
            SourceError: the bag does not exist, cannot be read or lacks the topic. Or ``topic`` is None and the bag
                does not have exactly one topic with images; the error lists them. Reading raises it too: if the bag
                breaks off, at an unreadable message without ``warn``, or if every message is unreadable.
        """
        try:
            from rosbags.rosbag2 import Reader
            from rosbags.typesys import Stores, get_typestore
        except ImportError:
            raise SourceError("bag:PATH needs the Python package rosbags; pip install rosbags.") from None
        storage = storage_of(path, warn)
        try:
            reader: Any = Reader(storage)
            reader.open()
        except Exception as error:  # the reader's parts raise errors of any type
            raise SourceError(f"{path} cannot be opened as a ROS 2 bag: {error}") from error
        try:
            connections = _connections_of(path, reader.connections, topic)
        except SourceError:
            reader.close()
            raise
        types = get_typestore(Stores.LATEST)
        return cls(
            path, reader, connections=connections, types=types, loop=loop, warn=warn, find_encoding=find_encoding
        )

    def __iter__(self) -> BagSource:
        return self

    def __next__(self) -> Picture:
        while True:
            try:
                kind, content = next(self._messages)
            except (StopIteration, SourceError):
                raise
            except Exception as error:  # the reader's parts raise errors of any type
                raise SourceError(f"The bag {self._path} breaks off: {error}") from error
            try:
                picture = self._picture(kind, content)
            except ImageError as error:
                sentence = f"Image {self._index} of {self._topic} in {self._path} cannot be read: {error}"
                if self._warn is None:
                    raise SourceError(sentence) from error
                self._warn(sentence)
            else:
                self._has_read_one = True
                return picture
            finally:
                self._index += 1

    def close(self) -> None:
        """Closes the files."""
        self._messages.close()
        if self._reader.is_open:
            self._reader.close()

    def _read(self) -> Generator[tuple[str, bytes], None, None]:
        """Yields the type and the content of each message."""
        while True:
            self._index, self._has_read_one = 0, False
            for connection, _, content in self._reader.messages(self._connections):
                yield connection.msgtype, content
            if not self._has_read_one:
                raise SourceError(f"None of the images of {self._topic} in {self._path} can be read.")
            if not self._loop:
                return

    def _picture(self, kind: str, content: bytes) -> Picture:
        try:
            message: Any = self._types.deserialize_cdr(decompressed(content), kind)
        except Exception as error:  # wrong bytes raise errors of any type
            raise ImageError(DropReason.CORRUPT_IMAGE, f"It is no {kind}: {error}.") from error
        if kind == IMAGE:
            pixels = read_message(message, find_other=self._find_encoding)
        else:
            pixels = read_compressed(message.data, message.format)
        image, encoding = _colours(pixels)
        header = message.header
        return Picture(
            image,
            encoding=encoding,
            name=f"message {self._index}",
            stamp=(header.stamp.sec, header.stamp.nanosec),
            frame_id=header.frame_id,
        )


def _connections_of(path: Path, connections: list[Any], topic: str | None) -> list[Any]:
    """Returns the connections of the topic, or of the only topic with images if ``topic`` is None."""
    with_images = [connection for connection in connections if connection.msgtype in (IMAGE, COMPRESSED)]
    kinds = {connection.topic: connection.msgtype for connection in with_images if connection.msgcount}
    listed = "; ".join(f"{name} ({kind.rpartition('/')[2]})" for name, kind in sorted(kinds.items())) or "none"
    if topic is None:
        if len(kinds) != 1:
            raise SourceError(
                f"The bag {path} has {len(kinds)} topics with images; bag:PATH:TOPIC names one of: {listed}."
            )
        (topic,) = kinds
    if topic not in kinds:
        raise SourceError(f"The bag {path} has no images of {topic}; its topics with images: {listed}.")
    return [connection for connection in with_images if connection.topic == topic]


def _colours(pixels: Pixels) -> tuple[NDArray[np.uint8], Literal["rgb8", "bgr8"]]:
    """Returns the image with three contiguous channels, and the order of its colours."""
    image = pixels.data
    image = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else np.ascontiguousarray(image[..., :3])
    return image, "rgb8" if pixels.rgb == RGB else "bgr8"
