"""Video files and V4L2 cameras as sources."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from split_infer_ros.errors import SourceError
from split_infer_ros.runtime.user_files import exists, is_regular
from split_infer_ros.sources.picture import Picture


class _CaptureSource(abc.ABC):
    """The images of a capture of OpenCV's as bgr8.

    Args:
        path: the file or device, for messages.
        capture: an open capture.
        loop: whether to begin again after the last image.
    """

    def __init__(self, path: Path, capture: cv2.VideoCapture, *, loop: bool = False) -> None:
        self._path, self._capture, self._loop = path, capture, loop
        self._index = 0

    def __iter__(self) -> Iterator[Picture]:
        return self

    def __next__(self) -> Picture:
        if not self._capture.isOpened():
            raise StopIteration
        image = np.asarray(self._read(), np.uint8)
        self._index += 1
        return Picture(image, encoding="bgr8", name=f"frame {self._index - 1}")

    def close(self) -> None:
        """Closes the file or the device."""
        self._capture.release()

    @abc.abstractmethod
    def _read(self) -> object:
        """Returns the next image. At the end, it raises StopIteration or an error."""


class VideoSource(_CaptureSource):
    """Yields the frames of a video file as bgr8."""

    @classmethod
    def open(cls, path: Path, *, loop: bool) -> VideoSource:
        """Opens a video file.

        Args:
            path: the file.
            loop: whether to begin again after the last frame.

        Raises:
            SourceError: the file does not exist, or OpenCV cannot read it as a video.
        """
        if not is_regular(path):
            problem = "is not a file" if exists(path) else "does not exist"
            raise SourceError(f"The video {path} {problem}; video:PATH takes a video file.")
        capture = cv2.VideoCapture(str(path))
        if not capture.isOpened():
            raise SourceError(f"{path} cannot be opened as a video; OpenCV has no reader for its content.")
        return cls(path, capture, loop=loop)

    def _read(self) -> object:
        ok, image = self._capture.read()
        if not ok and self._index == 0:
            raise SourceError(f"The video {self._path} holds no frame that can be read.")
        if not ok and self._loop:
            # Not every reader can seek back, so the file is opened again.
            self._capture.open(str(self._path))
            ok, image = self._capture.read()
        if not ok:
            raise StopIteration
        return image


class V4l2Source(_CaptureSource):
    """Yields the pictures of a camera of this machine as bgr8. Each read takes the newest picture."""

    @classmethod
    def open(cls, device: str, *, width: int, height: int) -> V4l2Source:
        """Opens a camera.

        Args:
            device: the path or number of a V4L2 device.
            width: the width to ask for, in pixels. The device may choose the nearest one that it has.
            height: the height to ask for, in pixels. The device may choose the nearest one that it has.

        Raises:
            SourceError: the device does not exist (the error lists the existing ones) or cannot be opened. Reading
                raises it when the camera gives no more pictures.
        """
        path = Path(f"/dev/video{device}" if device.isdecimal() else device)
        if not exists(path):
            existing = ", ".join(str(other) for other in sorted(Path("/dev").glob("video*"))) or "none"
            raise SourceError(f"There is no camera {path}; the video devices of this machine: {existing}.")
        capture = cv2.VideoCapture(str(path), cv2.CAP_V4L2)
        if not capture.isOpened():
            raise SourceError(
                f"{path} cannot be opened as a camera: it may be in use, be no V4L2 device, or you may need to be in "
                "the group 'video'."
            )
        capture.set(cv2.CAP_PROP_FRAME_WIDTH, width)
        capture.set(cv2.CAP_PROP_FRAME_HEIGHT, height)
        capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)
        return cls(path, capture)

    def _read(self) -> object:
        ok, image = self._capture.read()
        if not ok:
            raise SourceError(f"The camera {self._path} gives no more pictures; is it still plugged in?")
        return image
