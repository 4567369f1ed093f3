"""The launch file starts the pipeline as users do, and ends it cleanly. ``launch_test`` runs this file, not pytest."""

from __future__ import annotations

import os
import sys
import unittest
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "helpers"))  # launch_test knows nothing of pytest's pythonpath

import launch_testing
import launch_testing.actions
import launch_testing.asserts
import rclpy
from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import IncludeLaunchDescription, SetEnvironmentVariable
from launch.launch_description_sources import PythonLaunchDescriptionSource
from ros_support import START_S, Client, Received
from vision_msgs.msg import Detection2DArray, VisionInfo

from split_infer_ros.msg import FeatureHandle, PipelineStats

LAUNCH_FILE = Path(get_package_share_directory("split_infer_ros"), "launch/pipeline.launch.py")
NAMESPACE = "/robot"
PARAMETERS = {"engine": "torch", "batch_size": "2", "memory_policy": "pinned", "allow_user_code": "true"}
DOMAIN = os.environ.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))


def generate_test_description() -> LaunchDescription:
    """What is launched."""
    arguments = {"namespace": NAMESPACE, "model": "shapes", "config": "recording", "log_level": "warn", **PARAMETERS}
    return LaunchDescription(
        [
            SetEnvironmentVariable("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST"),
            IncludeLaunchDescription(
                PythonLaunchDescriptionSource(str(LAUNCH_FILE)), launch_arguments=arguments.items()
            ),
            launch_testing.actions.ReadyToTest(),
        ]
    )


class TestRunningPipeline(unittest.TestCase):
    """While it runs."""

    client: Client
    detections: Received

    @classmethod
    def setUpClass(cls) -> None:
        os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
        cls.context = rclpy.Context()
        rclpy.init(context=cls.context)
        cls.client = Client(cls.context, NAMESPACE)
        cls.detections = cls.client.subscribe(Detection2DArray, "detections")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.client.close()
        rclpy.try_shutdown(context=cls.context)

    def test_detections_are_published(self) -> None:
        message = self.detections.wait_for(3, START_S)[2]
        assert message.header.frame_id == "camera"
        assert any(found.detections for found in self.detections)

    def test_all_nodes_are_active_in_the_namespace(self) -> None:
        for node in ("camera", "backbone", "head", "stats"):
            assert self.client.state(f"{NAMESPACE}/{node}") == "active"

    def test_scenario_overrides_only_what_it_lists(self) -> None:
        assert self.client.get("backbone", "drop_policy") == "block"
        assert self.client.get("backbone", "image_depth") == 1000
        assert self.client.get("camera", "loop") is False
        assert self.client.get("backbone", "pool_slots") == 4
        assert self.client.get("head", "score_threshold") == 0.5

    def test_arguments_become_parameters(self) -> None:
        given = {"engine": "torch", "batch_size": 2, "memory_policy": "pinned", "allow_user_code": True}
        assert {name: self.client.get("backbone", name) for name in PARAMETERS} == given
        assert self.client.get("head", "engine") == "torch"

    def test_parameters_change_and_bad_ones_are_refused(self) -> None:
        handles = self.client.subscribe(FeatureHandle, "features")
        assert self.client.set("backbone", split_point="block5", batch_size=2) == ["", ""]
        handles.wait_for_one(
            lambda handle: (handle.split_point, len(handle.headers)) == ("block5", 2), "handles of the new kind"
        )
        assert "neck" in self.client.set("backbone", split_point="nowhere")[0]
        assert self.client.get("backbone", "split_point") == "block5"

    def test_stats_account_for_every_frame(self) -> None:
        def flowing(message: Any) -> bool:
            return bool(message.report.published > 20 and message.published_hz > 0)

        report = self.client.subscribe(PipelineStats, "stats").wait_for_one(flowing, "frames published", START_S).report
        assert report.model == "shapes"
        assert list(report.dropped) == []  # the scenario loses nothing
        assert report.received == report.published + report.in_flight

    def test_labels_are_latched(self) -> None:
        latched = rclpy.qos.QoSProfile(depth=1, durability=rclpy.qos.DurabilityPolicy.TRANSIENT_LOCAL)
        (info,) = self.client.subscribe(VisionInfo, "vision_info", latched).wait_for(1)
        assert info.method == "shapes"


@launch_testing.post_shutdown_test()
class TestStoppedPipeline(unittest.TestCase):
    """After it was told to end."""

    def test_process_ended_cleanly(self, proc_info: Any) -> None:
        launch_testing.asserts.assertExitCodes(proc_info)
