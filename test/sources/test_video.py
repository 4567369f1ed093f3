from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest

from split_infer_ros.errors import SourceError
from split_infer_ros.sources import open_source, video


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Three frames, each brighter than the one before."""
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    assert writer.isOpened()
    for level in (40, 120, 200):
        writer.write(np.full((48, 64, 3), level, np.uint8))
    writer.release()
    return path


def test_frames_come_in_order(clip: Path) -> None:
    pictures = list(open_source(f"video:{clip}"))
    assert [p.name for p in pictures] == ["frame 0", "frame 1", "frame 2"]
    assert [p.image.mean() for p in pictures] == pytest.approx([40, 120, 200], abs=3)
    assert {(p.encoding, p.image.shape, p.truth) for p in pictures} == {("bgr8", (48, 64, 3), None)}


def test_loop_begins_again(clip: Path) -> None:
    source = open_source(f"video:{clip}", loop=True)
    levels = [p.image.mean() for p in islice(source, 5)]
    assert levels == pytest.approx([40, 120, 200, 40, 120], abs=3)
    source.close()
    source.close()
    assert list(source) == []


def test_a_file_that_is_no_video_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"not a video" * 100)
    with pytest.raises(SourceError, match=r"clip\.mp4 cannot be opened"):
        open_source(f"video:{path}")


def test_a_missing_video_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        open_source(f"video:{tmp_path / 'none.avi'}")
    with pytest.raises(SourceError, match="is not a file"):
        open_source(f"video:{tmp_path}")


@pytest.mark.parametrize("device", ["987", "/dev/video987"])
def test_a_missing_camera_is_refused_with_existing_ones(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "glob", lambda *_: iter([Path("/dev/video2"), Path("/dev/video0")]))
    with pytest.raises(SourceError, match=r"no camera /dev/video987; .*: /dev/video0, /dev/video2\."):
        open_source(f"v4l2:{device}")


def test_a_file_that_is_no_camera_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "video0"
    path.write_bytes(b"")
    with pytest.raises(SourceError, match="cannot be opened as a camera"):
        open_source(f"v4l2:{path}")


class SimulatedCapture:
    """A camera that gives three pictures and then breaks off."""

    def __init__(self, *_: object) -> None:
        self.settings: dict[int, float] = {}
        self.frames: Iterator[int] = iter([1, 2, 3])
        self.is_open = True

    def isOpened(self) -> bool:
        return self.is_open

    def set(self, what: int, value: float) -> None:
        self.settings[what] = value

    def read(self) -> tuple[bool, np.ndarray | None]:
        level = next(self.frames, None)
        return level is not None, None if level is None else np.full((48, 64, 3), level, np.uint8)

    def release(self) -> None:
        self.is_open = False


def test_a_camera_takes_the_size_and_says_that_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = SimulatedCapture()
    monkeypatch.setattr(video.cv2, "VideoCapture", lambda *_: capture)
    (tmp_path / "video0").touch()
    source = open_source(f"v4l2:{tmp_path / 'video0'}", width=64, height=48)
    assert capture.settings[cv2.CAP_PROP_FRAME_WIDTH] == 64
    assert capture.settings[cv2.CAP_PROP_FRAME_HEIGHT] == 48
    assert [(p.name, p.image[0, 0, 0]) for p in islice(source, 3)] == [("frame 0", 1), ("frame 1", 2), ("frame 2", 3)]
    with pytest.raises(SourceError, match="no more pictures"):
        next(source)
    source.close()
    assert list(source) == []
