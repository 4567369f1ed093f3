"""Backbone and head on two hosts: two network namespaces that a cable connects, without shared memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from ament_index_python.packages import get_package_prefix
from ros_support import START_S, wait_until

pytestmark = pytest.mark.timeout(4 * START_S)

# A camera and an observer of the results, which prints each report of the backbone as a line of JSON.
OBSERVER = """
import json, pathlib, rclpy, sys
from rclpy.executors import ExternalShutdownException
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray
from split_infer_ros.msg import PipelineReport
rclpy.init()
node = rclpy.create_node("observer")
detections = []
images = node.create_publisher(Image, "image", 10)
def send():
    message = Image(height=48, width=64, encoding="mono8", step=64, data=bytes(48 * 64))
    message.header.frame_id = "camera"
    images.publish(message)
def print_report(report):
    print(json.dumps({
        "received": report.received, "published": report.published, "in_flight": report.in_flight,
        "dropped": {entry.reason: entry.count for entry in report.dropped},
        "memory": report.memory, "hop_p50_ms": report.hop_p50_ms, "detections": len(detections),
    }), flush=True)
node.create_subscription(Detection2DArray, "detections", detections.append, 100)
node.create_subscription(PipelineReport, "report", print_report, 10)
node.create_timer(0.02, send)
rclpy.spin(node)
"""


class Host:
    """A network namespace with its own /dev/shm, which exists while a process holds it."""

    def __init__(self, *inside: str) -> None:
        names = ("unshare", "--net", "--mount", *(() if inside else ("--user", "--map-root-user")))
        own = "mount -t tmpfs none /dev/shm && ip link set lo up && echo ready && exec cat"
        self._holder = subprocess.Popen(
            [*inside, *names, "sh", "-c", own], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._holder.pid
        self.enter = ("nsenter", "--user", "--net", "--mount", "--preserve-credentials", "--target", str(self.pid))
        assert self._holder.stdout is not None
        self.is_there = self._holder.stdout.readline() == "ready\n"

    def run(self, *command: str) -> None:
        """Runs a command on this host."""
        subprocess.run([*self.enter, *command], check=True, timeout=START_S)

    def close(self) -> None:
        """Releases the namespace, once its last process has ended."""
        self._holder.communicate()


class Running:
    """A process on a host. Its output is kept."""

    def __init__(self, host: Host, log: Path, *command: str) -> None:
        self._log = log
        with log.open("w") as out:
            self._process = subprocess.Popen(
                [*host.enter, sys.executable, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    @property
    def printed(self) -> str:
        """Everything that it printed so far."""
        return self._log.read_text()

    def kill(self) -> None:
        """Kills it."""
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self._process.terminate()

    def wait(self) -> int:
        """Waits until it has ended and returns its exit code."""
        return self._process.wait(START_S)


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    with ExitStack() as stack:
        near = Host()
        stack.callback(near.close)
        if not near.is_there:
            pytest.skip("this machine permits no network namespaces")
        far = Host("nsenter", "--user", "--preserve-credentials", "--target", str(near.pid))
        stack.callback(far.close)
        near.run("ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(far.pid))
        for number, host in enumerate((near, far), 1):
            host.run("ip", "address", "add", f"10.9.8.{number}/24", "dev", "cable")
            host.run("ip", "link", "set", "cable", "up")
        yield near, far


def test_head_on_another_host_survives_a_pulled_cable(
    hosts: tuple[Host, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET")
    near, far = hosts
    with ExitStack() as stack:

        def start(host: Host, name: str, *command: str) -> Running:
            running = Running(host, tmp_path / name, *command)
            stack.callback(running.kill)
            return running

        nodes = Path(get_package_prefix("split_infer_ros"), "lib/split_infer_ros")
        settings = ("--ros-args", "-p", "weights:=none", "-p", "transport:=network")
        backbone = start(near, "backbone", str(nodes / "backbone"), *settings)
        head = start(far, "head", str(nodes / "head"), *settings)
        observer = start(near, "observer", "-c", OBSERVER)

        def report(condition: Callable[[Any], bool], what: str) -> Any:
            def newest() -> Any:
                lines = [line for line in observer.printed.splitlines() if line.startswith("{")]
                return json.loads(lines[-1]) if lines and lines[-1].endswith("}") else None

            return wait_until(
                lambda: (found := newest()) and condition(found) and found,
                lambda: f"{what}: {observer.printed[-500:]} {backbone.printed} {head.printed}",
                START_S,
            )

        before = report(lambda found: found["detections"] > 20, "results from the other host")
        assert before["memory"] == "host"
        assert 0 < before["hop_p50_ms"] < 1000
        near.run("ip", "link", "set", "cable", "down")
        gone = report(lambda found: found["dropped"].get("reader_died"), "the head's absence to be noticed")
        near.run("ip", "link", "set", "cable", "up")
        back = report(lambda found: found["published"] > gone["published"] + 20, "results to flow again")
        for found in (before, gone, back):
            assert found["received"] == found["published"] + sum(found["dropped"].values()) + found["in_flight"]
        assert set(back["dropped"]) <= {"no_head", "reader_died", "lease_expired", "overrun", "middleware"}
        for node in (backbone, head):
            node.terminate()
        assert [node.wait() for node in (backbone, head)] == [0, 0]
        assert "Traceback" not in backbone.printed + head.printed
