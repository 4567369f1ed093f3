"""The launch file starts tenants with a head process for each. ``launch_test`` runs this file, not pytest."""

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
import rclpy
from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import IncludeLaunchDescription, SetEnvironmentVariable
from launch.launch_description_sources import PythonLaunchDescriptionSource
from ros_support import START_S, Client
from vision_msgs.msg import Detection2DArray

from split_infer_ros.msg import PipelineStats

LAUNCH_FILE = Path(get_package_share_directory("split_infer_ros"), "launch/pipeline.launch.py")
NAMESPACE = "/robot"
NAMES = ("left", "right")
FOLDER = tempfile.TemporaryDirectory()
CONFIG = Path(FOLDER.name, "tenants.yaml")
SETTINGS = """
/**/tenants:
  ros__parameters:
    tenants: [left, right]
    score_threshold: 0.25
    tenant:
      left: {image_topic: image, weights: none}
      right: {image_topic: image, weights: none}
    tenant.right.deadline_ms: 500.0
/**/camera:
  ros__parameters: {width: 64, height: 48, rate_hz: 10.0}
"""
DOMAIN = os.environ.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))


def generate_test_description() -> LaunchDescription:
    """What is launched."""
    CONFIG.write_text(SETTINGS)
    arguments = {"namespace": NAMESPACE, "config": str(CONFIG), "transport": "shared_memory", "engine": "torch"}
    return LaunchDescription(
        [
            SetEnvironmentVariable("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST"),
            IncludeLaunchDescription(
                PythonLaunchDescriptionSource(str(LAUNCH_FILE)), launch_arguments=arguments.items()
            ),
            launch_testing.actions.ReadyToTest(),
        ]
    )


class TestRunningTenants(unittest.TestCase):
    """While they run."""

    client: Client

    @classmethod
    def setUpClass(cls) -> None:
        os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
        cls.context = rclpy.Context()
        rclpy.init(context=cls.context)
        cls.client = Client(cls.context, NAMESPACE)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.client.close()
        rclpy.try_shutdown(context=cls.context)

    def test_each_tenants_head_publishes_its_results(self) -> None:
        for name in NAMES:
            self.client.subscribe(Detection2DArray, f"{name}/detections").wait_for(3, START_S)
            (info,) = self.client.node.get_publishers_info_by_topic(f"{NAMESPACE}/{name}/detections")
            assert (info.node_namespace, info.node_name) == (f"{NAMESPACE}/{name}", "head")

    def test_heads_have_the_tenants_parameters(self) -> None:
        expected = {"transport": "shared_memory", "engine": "torch", "weights": "none", "score_threshold": 0.25}
        for name in NAMES:
            assert {row: self.client.get(f"{name}/head", row) for row in expected} == expected

    def test_reports_account_for_every_frame(self) -> None:
        for name in NAMES:
            stats = self.client.subscribe(PipelineStats, f"{name}/stats")
            report = stats.wait_for_one(lambda stats: stats.report.published > 5, "frames published", START_S).report
            dropped = sum(entry.count for entry in report.dropped)
            assert report.received == report.published + dropped + report.in_flight


@launch_testing.post_shutdown_test()
class TestStoppedTenants(unittest.TestCase):
    """After they were told to end."""

    def test_processes_ended_cleanly(self, proc_info: Any) -> None:
        launch_testing.asserts.assertExitCodes(proc_info)
