"""Sources of pictures that need no ROS: drawn scenes, a folder, a video, a recording or a camera."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from split_infer_ros.errors import SourceError
from split_infer_ros.images.encodings import FindEncoding
from split_infer_ros.runtime.user_files import user_path
from split_infer_ros.sources.bag import BagSource, split_location
from split_infer_ros.sources.folder import FolderSource
from split_infer_ros.sources.picture import Picture, Source
from split_infer_ros.sources.scenes import Scene, check_scene, draw_scene
from split_infer_ros.sources.video import V4l2Source, VideoSource

__all__ = ["Picture", "Scene", "Source", "draw_scene", "open_source"]


def open_source(
    name: str,
    *,
    seed: int = 0,
    width: int = 640,
    height: int = 480,
    loop: bool = False,
    warn: Callable[[str], None] | None = None,
    find_encoding: FindEncoding | None = None,
) -> Source:
    """Opens a source by its name.

    Args:
        name: ``shapes``, ``folder:PATH``, ``video:PATH``, ``bag:PATH`` or ``bag:PATH:TOPIC`` (a ROS 2 bag or an
            .mcap file), or ``v4l2:DEVICE`` (a path or a number).
        seed: the series of scenes (shapes).
        width: the width of the pictures in pixels (shapes), or the width to ask of a camera.
        height: the height of the pictures in pixels (shapes), or the height to ask of a camera.
        loop: whether to begin again at the end (folder, video, bag).
        warn: called with a sentence for each unreadable image, which is then skipped. If None, such an image raises
            SourceError (folder, bag).
        find_encoding: finds encodings of raw images that the package does not know. If None, they are unreadable (bag).

    Raises:
        SourceError: the name is unknown, or the source cannot be opened.
    """
    kind, _, location = name.partition(":")
    if kind == "shapes" and not location:
        return _ShapesSource(seed, width=width, height=height)
    if kind == "folder" and location:
        return FolderSource.open(user_path(location), loop=loop, warn=warn)
    if kind == "video" and location:
        return VideoSource.open(user_path(location), loop=loop)
    if kind == "bag" and location:
        path, topic = split_location(location)
        return BagSource.open(path, topic=topic, loop=loop, warn=warn, find_encoding=find_encoding)
    if kind == "v4l2" and location:
        return V4l2Source.open(location, width=width, height=height)
    raise SourceError(
        f"'{name}' is no source; there are shapes, folder:PATH, video:PATH, bag:PATH[:TOPIC] and v4l2:DEVICE."
    )


class _ShapesSource:
    """The drawn scenes of one series, without end. Arguments and errors are those of ``draw_scene``."""

    def __init__(self, seed: int, *, width: int, height: int) -> None:
        check_scene(seed, width, height)
        self._seed, self._width, self._height = seed, width, height
        self._index = 0
        self._is_closed = False

    def __iter__(self) -> Iterator[Picture]:
        return self

    def __next__(self) -> Picture:
        if self._is_closed:
            raise StopIteration
        scene = draw_scene(self._seed, self._index, width=self._width, height=self._height)
        self._index += 1
        return Picture(scene.image, encoding="rgb8", name=f"scene {self._index - 1}", truth=scene)

    def close(self) -> None:
        """Ends the series."""
        self._is_closed = True
