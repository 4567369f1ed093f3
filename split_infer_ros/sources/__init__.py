"""Where pictures come from: drawn scenes, a folder, a video, a recording, a camera. Needs no ROS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from split_infer_ros.errors import SourceError
from split_infer_ros.sources.bag import BagSource, split_place
from split_infer_ros.sources.folder import FolderSource
from split_infer_ros.sources.picture import Picture, Source
from split_infer_ros.sources.scenes import Scene, draw_scene
from split_infer_ros.sources.shapes import ShapesSource
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
) -> Source:
    """Opens a source by its name.

    Args:
        name: ``shapes``, ``folder:PATH``, ``video:PATH``, ``bag:PATH`` or ``bag:PATH:TOPIC`` (a ROS 2 bag or an
            .mcap file), or ``v4l2:DEVICE`` (a path or a number).
        seed: which series of scenes (shapes).
        width: of the pictures in pixels (shapes, and asked of a camera).
        height: likewise.
        loop: begin again at the end (folder, video, bag).
        warn: is given a sentence for each unreadable image, which is then passed over; None raises (folder,
            bag).

    Raises:
        SourceError: unknown name, or the source cannot be opened.
    """
    kind, _, place = name.partition(":")
    if kind == "shapes" and not place:
        return ShapesSource(seed, width, height)
    if kind == "folder" and place:
        return FolderSource(Path(place).expanduser(), loop, warn)
    if kind == "video" and place:
        return VideoSource(Path(place).expanduser(), loop)
    if kind == "bag" and place:
        return BagSource(*split_place(place), loop, warn)
    if kind == "v4l2" and place:
        return V4l2Source(place, width, height)
    raise SourceError(
        f"'{name}' is no source; there are shapes, folder:PATH, video:PATH, bag:PATH[:TOPIC] and v4l2:DEVICE."
    )
