"""The launch file runs a user's ONNX file. ``launch_test`` runs this file, not pytest.

The file holds a small detector with the outputs and the metadata of Ultralytics' exporter.
"""

from __future__ import annotations

import os
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "helpers"))  # launch_test knows nothing of pytest's pythonpath

import launch_testing
import launch_testing.actions
import launch_testing.asserts
import numpy as np
import onnx
import rclpy
from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import IncludeLaunchDescription, SetEnvironmentVariable
from launch.launch_description_sources import PythonLaunchDescriptionSource
from onnx.reference import ReferenceEvaluator
from onnx_files import network, ultralytics
from ros_support import START_S, Client, Received
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray, VisionInfo

from split_infer_ros.images.encodings import RGB, Pixels
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Limits

LAUNCH_FILE = Path(get_package_share_directory("split_infer_ros"), "launch/pipeline.launch.py")
FOLDER = tempfile.TemporaryDirectory()
MODEL, SETTINGS = Path(FOLDER.name, "mine.onnx"), Path(FOLDER.name, "settings.yaml")
CONFIG = """
/**/camera:
  ros__parameters: {rate_hz: 10.0}
"""
NAMES = ("cup", "ball", "tree")
SCALE = [32.0, 32.0, 16.0, 16.0, 1.0, 1.0, 1.0]  # of a box in pixels of the input, and of the classes' scores
LIMITS = Limits(score_threshold=0.5)  # the node's default
DOMAIN = os.environ.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))


def generate_test_description() -> LaunchDescription:
    """What is launched."""
    metadata = ultralytics(imgsz="[32, 32]", names=str(dict(enumerate(NAMES))))
    MODEL.write_bytes(network(21, 7, scale=SCALE, metadata=metadata, transposed=True, batch=1).SerializeToString())
    SETTINGS.write_text(CONFIG)
    arguments = {"model": str(MODEL), "config": str(SETTINGS), "log_level": "warn"}
    arguments["engine"] = "onnxruntime"  # auto would compare the engines first
    return LaunchDescription(
        [
            SetEnvironmentVariable("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST"),
            IncludeLaunchDescription(
                PythonLaunchDescriptionSource(str(LAUNCH_FILE)), launch_arguments=arguments.items()
            ),
            launch_testing.actions.ReadyToTest(),
        ]
    )


def expected_for(image: Image) -> list[tuple[str, float, tuple[float, ...]]]:
    """Returns what ONNX's reference evaluator finds in an image: class, score, and the box as centre and size."""
    entry = find_model(str(MODEL))
    pixels = Pixels(np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, 3), RGB)
    assert image.encoding == "rgb8"
    preprocess = entry.preprocess
    images = preprocess.normalise(preprocess.gather([pixels], preprocess.staging(1)), channels_last=False)
    (output,) = ReferenceEvaluator(onnx.load(MODEL)).run(None, {"images": images})
    (found,) = entry.decode((output,), LIMITS)
    rows = preprocess.to_source(found.boxes, image.height, image.width).tolist()
    return [
        (entry.labels[label], score, ((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1))
        for label, score, (x1, y1, x2, y2) in zip(found.labels.tolist(), found.scores.tolist(), rows, strict=True)
    ]


class TestRunningPipeline(unittest.TestCase):
    """While it runs."""

    client: Client
    images: Received
    detections: Received

    @classmethod
    def setUpClass(cls) -> None:
        os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
        cls.context = rclpy.Context()
        rclpy.init(context=cls.context)
        cls.client = Client(cls.context)
        cls.detections = cls.client.subscribe(Detection2DArray, "detections")
        cls.images = cls.client.subscribe(Image, "image")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.client.close()
        rclpy.try_shutdown(context=cls.context)

    def test_detections_are_those_of_onnxs_reference(self) -> None:
        """ONNX Runtime and the evaluator differ by the rounding of a few sums: by far less than the tolerance."""
        self.images.wait_for(3, START_S)
        stamps = {str(each.header.stamp): each for each in list(self.images)}
        message = self.detections.wait_for_one(
            lambda each: str(each.header.stamp) in stamps and bool(each.detections),
            "detections of a seen image",
            START_S,
        )
        expected = expected_for(stamps[str(message.header.stamp)])
        assert len(expected) == len(message.detections) > 0
        for found, (name, score, box) in zip(message.detections, expected, strict=True):
            (best,) = found.results
            centre = found.bbox.center.position
            assert best.hypothesis.class_id == name
            np.testing.assert_allclose(best.hypothesis.score, score, rtol=1e-3)
            np.testing.assert_allclose(
                (centre.x, centre.y, found.bbox.size_x, found.bbox.size_y), box, rtol=1e-3, atol=1e-2
            )

    def test_nodes_run_the_file(self) -> None:
        assert self.client.get("backbone", "model") == str(MODEL)
        for node in ("camera", "backbone", "head", "stats"):
            assert self.client.state(node) == "active"

    def test_labels_come_from_the_metadata(self) -> None:
        latched = rclpy.qos.QoSProfile(depth=1, durability=rclpy.qos.DurabilityPolicy.TRANSIENT_LOCAL)
        (info,) = self.client.subscribe(VisionInfo, "vision_info", latched).wait_for(1)
        assert info.method == str(MODEL)
        node, _, parameter = info.database_location.rpartition("/")
        assert tuple(self.client.get(node, parameter)) == NAMES


@launch_testing.post_shutdown_test()
class TestStoppedPipeline(unittest.TestCase):
    """After it was told to end."""

    def test_process_ended_cleanly(self, proc_info: Any) -> None:
        launch_testing.asserts.assertExitCodes(proc_info)
