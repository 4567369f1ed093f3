"""The node ``camera`` names each image that it cannot read."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.context import Context
from ros_pipeline import Pipeline
from ros_support import wait_until
from sensor_msgs.msg import Image


def test_unreadable_file_is_named_once(context: Context, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cv2.imwrite(str(tmp_path / "good.png"), np.zeros((48, 64, 3), np.uint8))
    damaged = ("one.jpg", "two.jpg", "three.png")
    for name in damaged:
        (tmp_path / name).write_bytes(b"no image")
    with Pipeline(context, camera={"source": f"folder:{tmp_path}", "rate_hz": 20.0}) as pipeline:
        images = pipeline.client.subscribe(Image, "image")
        wait_until(lambda: len(images) >= 3, "the folder to be gone through more than once")
    printed = "".join(capfd.readouterr())  # once, at the end: what is written during a reading may be lost
    counts = {name: printed.count(f"{name} cannot be read as an image.") for name in damaged}
    assert counts == dict.fromkeys(damaged, 1)


def test_folder_that_ended_is_no_silent_camera(context: Context, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "only.png"), np.zeros((48, 64, 3), np.uint8))
    source = f"folder:{tmp_path}"
    messages: set[tuple[bytes, str]] = set()

    def has_ended() -> bool:
        messages.update((each.level, each.message) for array in diagnostics for each in array.status)
        return any(message.startswith(f"{source} has ended.") for _, message in messages)

    with Pipeline(
        context,
        camera={"source": source, "loop": False},
        backbone={"weights": "none"},
        head={"weights": "none"},
        stats={"period_s": 0.1, "camera_timeout_s": 0.4},
    ) as pipeline:
        diagnostics = pipeline.client.subscribe(DiagnosticArray, "/diagnostics")
        wait_until(has_ended, "the end of the folder")
    levels = {level for level, message in messages if message.startswith(source)}
    assert levels == {DiagnosticStatus.OK}
    assert not any("does the camera run" in message for _, message in messages)
