"""Draws the pictures that a benchmark's cameras send."""

from __future__ import annotations

from pathlib import Path

import cv2

from split_infer_ros.sources import draw_scene

PICTURES = 8


def draw_pictures(folder: Path) -> None:
    """Writes ``PICTURES`` pictures of drawn scenes to a new folder, as BMP files."""
    folder.mkdir()
    for index in range(PICTURES):
        cv2.imwrite(str(folder / f"{index}.bmp"), draw_scene(0, index).image)
