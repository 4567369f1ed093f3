"""A process that loses its GPU reports it, and ends in time with its own exit code."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lost_device import AT_START, HANGS, LATER, LOSE_WHEN, SAID
from ros_support import START_S, Client, Received, wait_until
from vision_msgs.msg import Detection2DArray

from split_infer_ros.runtime.faults import DEVICE_LOST_EXIT

SCRIPT = Path(__file__).parents[1] / "helpers" / "lost_device.py"
IN_TIME_S = 40.0  # alone on a machine it takes 3 s at most; a hang would last for ever
END_S = 2 * START_S  # of a whole process: it imports all that a node needs first
MAX_RUNS = 3  # of a process whose last report is missing
LAST_REPORT_S = 10.0  # how long it may be on its way
pytestmark = [pytest.mark.timeout(4 * START_S), pytest.mark.kills_nodes]
SMALL = ("-p", "width:=64", "-p", "height:=48")
ONE_MODEL = (*SMALL, "-p", "weights:=none")
TENANTS = (
    *SMALL,
    "-p",
    "tenants:=[front, rear]",
    "-p",
    "tenant.front.image_topic:=image",
    "-p",
    "tenant.rear.image_topic:=image",
)


class LosingProcess:
    """A process that loses its device.

    Args:
        node: its executable.
        moment: when it loses the device.
        arguments: ROS's.
        when: a file; the device is lost only once it is there.
    """

    def __init__(self, node: str, moment: str, *arguments: str, when: Path | None = None) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, SCRIPT, node, moment, "--ros-args", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **({LOSE_WHEN: str(when)} if when else {})},
        )
        self.printed = ""
        self.lasted_s = 0.0  # from the loss to the end

    def end(self) -> int:
        """Waits until the process has ended by itself and returns its exit code."""
        try:
            self.printed = self._popen.communicate(timeout=END_S)[0]
        except subprocess.TimeoutExpired:
            self._popen.kill()
            pytest.fail(f"it still runs after {END_S:g} s; it printed:\n{self._popen.communicate()[0]}")
        ended = time.monotonic()
        assert SAID in self.printed, self.printed
        # the steady clock is the machine's, so that of another process is the same
        self.lasted_s = ended - float(self.printed.partition(SAID)[2].split()[0])
        return self._popen.returncode


@pytest.fixture
def client(ros_domain: int) -> Iterator[Client]:
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=ros_domain)
    found = Client(context)
    yield found
    found.close()
    rclpy.try_shutdown(context=context)


def last_values(diagnostics: Received, line: str) -> dict[str, str]:
    """Returns the values of the latest status of that name that reports the lost GPU as an error."""
    found = [
        status
        for message in diagnostics
        for status in message.status
        if status.name == line and status.level == DiagnosticStatus.ERROR
    ]
    assert found, f"nobody says that {line} failed: {diagnostics[-1:]}"
    assert "GPU is lost" in found[-1].message
    assert "illegal memory access" in found[-1].message
    return {value.key: value.value for value in found[-1].values}


def ends_in_time(process: LosingProcess, when: Path, *topics: Received) -> None:
    """Has the process lose its device once both topics have messages, and checks how it ends."""
    for messages in topics:
        messages.wait_for(1, START_S)
    when.touch()
    assert process.end() == DEVICE_LOST_EXIT, process.printed
    assert process.lasted_s < IN_TIME_S


def lose_pipeline(
    client: Client,
    folder: Path,
    moment: str,
    *arguments: str,
    detections_topic: str,
    is_complete: Callable[[Received], object],
) -> Received:
    """Runs a pipeline that loses its device, and checks how it ends; returns the messages on ``/diagnostics``.

    If the machine stalls, the process can be cut off before its last report, or its end can overtake that report. The
    messages are then not complete, and another process takes its turn.
    """
    for turn in range(MAX_RUNS):
        when = folder / f"now {turn}"
        process = LosingProcess("pipeline", moment, *arguments, when=when)
        diagnostics = client.subscribe(DiagnosticArray, "/diagnostics")
        detections = client.subscribe(Detection2DArray, detections_topic)
        ends_in_time(process, when, detections, diagnostics)
        print(f"it lasted {process.lasted_s:.2f} s")
        if arrives(diagnostics, is_complete):
            break
    return diagnostics


def arrives(diagnostics: Received, is_complete: Callable[[Received], object]) -> bool:
    """Returns whether the last report arrives in time."""

    def is_there() -> bool:
        with suppress(AssertionError):  # nobody says yet that a pipeline failed
            return bool(is_complete(diagnostics))
        return False

    try:
        return bool(wait_until(is_there, "the last report", LAST_REPORT_S))
    except AssertionError:
        return False


@pytest.mark.parametrize("moment", [LATER, HANGS])
def test_lost_gpu_ends_the_pipeline_in_time(client: Client, moment: str, tmp_path: Path) -> None:
    def is_complete(diagnostics: Received) -> bool:
        values = last_values(diagnostics, "pipeline")
        return "dropped: device_lost" in values and (moment == HANGS or values["in flight"] == "0")

    diagnostics = lose_pipeline(
        client, tmp_path, moment, *ONE_MODEL, detections_topic="detections", is_complete=is_complete
    )
    facts = last_values(diagnostics, "pipeline")
    received, published, in_flight, lost = (
        int(facts[key]) for key in ("received", "published", "in flight", "dropped: device_lost")
    )
    assert lost > 0
    others = sum(int(facts[key]) for key in facts if key.startswith("dropped: ")) - lost
    assert received == published + lost + others + in_flight
    assert in_flight == 0 or moment == HANGS  # one that the head still had when all stood still


def test_lost_gpu_ends_tenants_in_time(client: Client, tmp_path: Path) -> None:
    def lost_frames(diagnostics: Received) -> int:
        facts = [last_values(diagnostics, f"pipeline/{name}") for name in ("front", "rear")]
        return sum(int(each.get("dropped: device_lost", 0)) for each in facts)

    diagnostics = lose_pipeline(
        client, tmp_path, LATER, *TENANTS, detections_topic="front/detections", is_complete=lost_frames
    )
    assert lost_frames(diagnostics) > 0


@pytest.mark.parametrize("arguments", [ONE_MODEL, TENANTS], ids=["one model", "tenants"])
def test_gpu_lost_at_start_ends_the_process(ros_domain: int, arguments: tuple[str, ...]) -> None:
    process = LosingProcess("pipeline", AT_START, *arguments)
    assert process.end() == DEVICE_LOST_EXIT, process.printed
    assert process.lasted_s < IN_TIME_S
    assert "illegal memory access" in process.printed


def test_lost_gpu_ends_a_single_backbone_in_time(client: Client) -> None:
    camera = subprocess.Popen(
        [sys.executable, "-m", "split_infer_ros.nodes.camera", "--ros-args", *SMALL], stdin=subprocess.DEVNULL
    )
    try:
        process = LosingProcess("backbone", LATER, "-p", "weights:=none")
        assert process.end() == DEVICE_LOST_EXIT, process.printed
        assert process.lasted_s < IN_TIME_S
    finally:
        camera.terminate()
        try:
            camera.wait(START_S)
        except subprocess.TimeoutExpired:
            camera.kill()
            raise
