"""The node ``camera`` names each image that it cannot read."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from rclpy.context import Context
from ros_pipeline import Pipeline
from ros_support import wait_until
from sensor_msgs.msg import Image


def test_unreadable_file_is_named_once(context: Context, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cv2.imwrite(str(tmp_path / "good.png"), np.zeros((48, 64, 3), np.uint8))
    damaged = ("one.jpg", "two.jpg", "three.png")
    for name in damaged:
        (tmp_path / name).write_bytes(b"no image")
    printed = ""

    def passed_twice() -> bool:
        nonlocal printed
        printed += "".join(capfd.readouterr())
        return len(images) >= 3

    with Pipeline(context, camera={"source": f"folder:{tmp_path}", "rate_hz": 20.0}) as pipeline:
        images = pipeline.client.subscribe(Image, "image")
        wait_until(passed_twice, "the folder to be gone through more than once")
    printed += "".join(capfd.readouterr())
    counts = {name: printed.count(f"{name} cannot be read as an image.") for name in damaged}
    assert counts == dict.fromkeys(damaged, 1)
