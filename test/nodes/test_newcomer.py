"""A newcomer's path: a clone, one command, and detections of an ONNX file of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from documentation import ROOT
from onnx_files import network, ultralytics
from rclpy.context import Context
from ros_support import RELIABLE, Client, Received
from vision_msgs.msg import Detection2DArray

ENVIRONMENT_S = 900.0  # in which the clone's environment is made
SCALE = [32.0, 32.0, 16.0, 16.0, 1.0, 1.0, 1.0]  # of a box in pixels of the input, and of the classes' scores


@pytest.mark.slow
@pytest.mark.timeout(1.5 * ENVIRONMENT_S)
def test_clone_detects_with_a_user_s_onnx_file(tmp_path: Path, context: Context) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed (the extra engines)")
    clone, model = tmp_path / "split_infer_ros", tmp_path / "mine.onnx"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    metadata = ultralytics(imgsz="[32, 32]", names="{0: 'cup', 1: 'ball', 2: 'tree'}")
    model.write_bytes(network(21, 7, scale=SCALE, metadata=metadata, transposed=True, batch=1).SerializeToString())
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    arguments = ["--ros-args", "-p", f"model:={model}", "-p", "engine:=onnxruntime"]
    process = subprocess.Popen(
        [str(clone / "scripts" / "run"), "pipeline", *arguments], env=environment, start_new_session=True
    )
    client, received = Client(context), Received()
    try:
        client.node.create_subscription(Detection2DArray, "detections", received.append, RELIABLE)
        received.wait_for(3, ENVIRONMENT_S)
        names = {each.results[0].hypothesis.class_id for message in received for each in message.detections}
        assert names <= {"cup", "ball", "tree"}
        assert names
    finally:
        client.close()
        os.killpg(process.pid, signal.SIGINT)
        process.wait(30)
        shutil.rmtree(clone)  # it is large
