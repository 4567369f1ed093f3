"""Video files and V4L2 cameras as sources."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from split_infer_ros.errors import SourceError
from split_infer_ros.sources.picture import Picture


class VideoSource:
    """The frames of a video file as bgr8.

    Args:
        path: of the file.
        loop: begin again after the last frame.

    Raises:
        SourceError: no such file, or it is no video that OpenCV can read.
    """

    def __init__(self, path: Path, loop: bool) -> None:
        if not path.is_file():
            kind = "is not a file" if path.exists() else "does not exist"
            raise SourceError(f"The video {path} {kind}; video:PATH takes a video file.")
        self._path, self._loop = path, loop
        self._capture = cv2.VideoCapture(str(path))
        self._index = 0
        if not self._capture.isOpened():
            raise SourceError(f"{path} cannot be opened as a video; OpenCV knows no reader for what it holds.")

    def __iter__(self) -> VideoSource:
        return self

    def __next__(self) -> Picture:
        if not self._capture.isOpened():
            raise StopIteration
        ok, image = self._capture.read()
        if not ok and self._index == 0:
            raise SourceError(f"The video {self._path} holds no frame that can be read.")
        if not ok and self._loop:
            # Opened again, because not every reader can seek back.
            self._capture.open(str(self._path))
            ok, image = self._capture.read()
        if not ok:
            raise StopIteration
        self._index += 1
        return Picture(np.asarray(image, np.uint8), "bgr8", f"frame {self._index - 1}")

    def close(self) -> None:
        """Closes the file."""
        self._capture.release()


class V4l2Source:
    """The pictures of a camera of the machine as bgr8, the newest each time.

    Args:
        device: path or number of a V4L2 device.
        width: asked of the device, in pixels; it may give its nearest.
        height: likewise.

    Raises:
        SourceError: no such device (the error lists those that exist), or it cannot be opened; while reading: it
            gives no more pictures.
    """

    def __init__(self, device: str, width: int, height: int) -> None:
        self._path = Path(f"/dev/video{device}" if device.isdecimal() else device)
        if not self._path.exists():
            there = ", ".join(str(path) for path in sorted(Path("/dev").glob("video*"))) or "none"
            raise SourceError(f"There is no camera {self._path}; the video devices of this machine: {there}.")
        self._capture = cv2.VideoCapture(str(self._path), cv2.CAP_V4L2)
        if not self._capture.isOpened():
            raise SourceError(
                f"{self._path} cannot be opened as a camera: it may be in use, be no V4L2 device, or you may need to "
                "be in the group 'video'."
            )
        self._capture.set(cv2.CAP_PROP_FRAME_WIDTH, width)
        self._capture.set(cv2.CAP_PROP_FRAME_HEIGHT, height)
        self._capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)
        self._index = 0

    def __iter__(self) -> V4l2Source:
        return self

    def __next__(self) -> Picture:
        if not self._capture.isOpened():
            raise StopIteration
        ok, image = self._capture.read()
        if not ok:
            raise SourceError(f"The camera {self._path} gives no more pictures; is it still plugged in?")
        self._index += 1
        return Picture(np.asarray(image, np.uint8), "bgr8", f"frame {self._index - 1}")

    def close(self) -> None:
        """Lets go of the device."""
        self._capture.release()
