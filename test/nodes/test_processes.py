"""The executables as real processes: how they work together, and how they end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import rclpy
from ros_processes import LIGHT, Process
from ros_support import START_S, Client, wait_until
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from split_infer_ros.msg import FeatureHandle, PipelineStats
from split_infer_ros.nodes.process import PROFILE_VARIABLES, TRANSPORTS_VARIABLE

SMALL = ("-p", "width:=64", "-p", "height:=48")
QUICK, ON_TORCH = (*LIGHT, *SMALL), ("-p", "weights:=none", "-p", "engine:=torch", *SMALL)


class Machine:
    """The processes of a test, and a client whose ROS context ends with the test."""

    def __init__(self, domain: int) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.client = Client(self.context)
        self.processes: list[Process] = []

    def start(self, executable: str, *arguments: str) -> Process:
        """Starts an executable with ROS arguments."""
        self.processes.append(Process(executable, "--ros-args", *arguments))
        return self.processes[-1]

    def end(self, number: int = signal.SIGINT) -> None:
        """Sends a signal to all processes, and asserts that they end by themselves and leave nothing behind."""
        for process in self.processes:
            process.record_segments()
            process.send(number)
        for process in self.processes:
            assert process.wait() == 0, process.printed
            assert "Traceback" not in process.printed, process.printed
        self.close()
        assert [process.leftovers for process in self.processes] == [[] for _ in self.processes]

    def close(self) -> None:
        """Shuts the ROS context down."""
        if self.context.ok():
            self.client.close()
            rclpy.try_shutdown(context=self.context)


@pytest.fixture
def machine(ros_domain: int) -> Iterator[Machine]:
    found = Machine(ros_domain)
    yield found
    for process in found.processes:
        process.kill()
    found.close()


@pytest.mark.parametrize(
    ("number", "arguments"), [(signal.SIGINT, ON_TORCH), (signal.SIGTERM, QUICK), (signal.SIGHUP, QUICK)]
)
def test_signal_ends_a_running_pipeline(machine: Machine, number: int, arguments: tuple[str, ...]) -> None:
    ignored = signal.signal(number, signal.SIG_DFL)  # nohup has SIGHUP ignored, which a process hands down
    try:
        process = machine.start("pipeline", *arguments)
    finally:
        signal.signal(number, ignored)
    machine.client.subscribe(Detection2DArray, "detections").wait_for(5, START_S)
    process.record_segments()
    assert process.segments  # else nothing is looked at
    machine.end(number)


MOMENTS: dict[str, Callable[[Process], bool]] = {
    "Python has begun": lambda process: process.handles_sigterm,
    "torch is loaded": lambda process: process.maps("libtorch_cpu"),
    "ROS is loaded": lambda process: process.maps("_rclpy_pybind11"),
    "ROS has begun": lambda process: process.maps("/dev/shm/fast"),
    "the backbone is active": lambda process: "split at" in process.printed or not process.runs,
}


@pytest.mark.parametrize(("name", "reached"), MOMENTS.items())
def test_signal_ends_a_process_at_any_moment_of_its_start(
    ros_domain: int, name: str, reached: Callable[[Process], bool]
) -> None:
    with Process("pipeline", "--ros-args", *ON_TORCH) as process:
        wait_until(partial(reached, process), name, START_S)
        process.send(signal.SIGTERM)
        assert process.wait() == 0, process.printed
        assert "Traceback" not in process.printed, process.printed
        assert process.leftovers == []


def test_repeated_signals_are_harmless(machine: Machine) -> None:
    """Signals that come while the process is ending have no effect."""
    process = machine.start("pipeline", *QUICK, "-p", "drop_policy:=block", "-p", "batch_size:=4", "-p", "rate_hz:=0.0")
    machine.client.subscribe(Detection2DArray, "detections").wait_for(5, START_S)
    for _ in range(20):
        if process.runs:
            process.send(signal.SIGINT)
            process.send(signal.SIGTERM)
            time.sleep(0.02)
    machine.end()


def test_each_node_runs_alone(machine: Machine) -> None:
    """All four run at once. Without a head in its process, the backbone drops its frames as ``no_head``."""
    machine.start("camera", *SMALL)
    machine.start("backbone", *LIGHT)
    machine.start("head", *LIGHT)
    machine.start("stats")
    for name in ("camera", "backbone", "head", "stats"):
        wait_until(lambda name=name: machine.client.state(name) == "active", f"{name} to be active", START_S)
    stats = machine.client.subscribe(PipelineStats, "stats")
    report = stats.wait_for_one(lambda message: message.report.received > 3, "frames received").report
    assert report.published == 0
    assert "no_head" in {entry.reason for entry in report.dropped}
    machine.end(signal.SIGTERM)


SLOW_CALLBACK = """
import sys, time
from split_infer_ros.nodes.process import run
from split_infer_ros.nodes.stats import StatsNode

class Slow(StatsNode):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.create_timer(0.1, self.wait)

    def wait(self):
        print("waits", flush=True)
        time.sleep(1.0)
        print("has waited", flush=True)

    def close(self):
        super().close()
        print("closed", flush=True)

sys.exit(run([Slow]))
"""


def test_running_callback_ends_before_the_nodes_close(ros_domain: int) -> None:
    """Python 3.11 takes a thread for ended after a signal has interrupted a call that joins it."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_CALLBACK], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=START_S)
    assert printed.splitlines()[-2:] == ["has waited", "closed"]
    assert process.returncode == 0


def test_other_processes_feed_and_observe_the_pipeline(machine: Machine) -> None:
    machine.start("pipeline", *QUICK, "-p", "source:=none")
    machine.start("camera", "-p", "width:=1920", "-p", "height:=1080", "-p", "rate_hz:=5.0", "-r", "__node:=other")
    client = machine.client
    detections = client.subscribe(Detection2DArray, "detections")
    images = client.subscribe(Image, "image")
    handles = client.subscribe(FeatureHandle, "features")
    stats = client.subscribe(PipelineStats, "stats")
    detections.wait_for(5, START_S)
    (message, *_) = images.wait_for(5)
    assert (message.height, message.width, message.encoding) == (1080, 1920, "rgb8")
    assert len(message.data) == 3 * 1080 * 1920
    handle = handles.wait_for(5)[4]
    assert (handle.model, handle.split_point, handle.sources) == ("shapes", "neck", ["image"])
    report = stats.wait_for_one(lambda message: message.report.published >= 5, "five frames published").report
    dropped = sum(entry.count for entry in report.dropped)
    assert report.received == report.published + dropped + report.in_flight
    machine.end()


@pytest.mark.parametrize(("transports", "has_shared_memory"), [("", True), ("UDPv4", False)])
def test_transports_that_the_user_names_are_used(
    machine: Machine, transports: str, has_shared_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (*PROFILE_VARIABLES, TRANSPORTS_VARIABLE):  # the user's, or of nodes that ran in this process
        monkeypatch.delenv(variable, raising=False)
    # LOCALHOST has Fast DDS use shared memory whatever else is said
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "OFF")
    if transports:
        monkeypatch.setenv(TRANSPORTS_VARIABLE, transports)
    backbone = machine.start("backbone", *LIGHT)
    backbone.wait_until_printed("split at")
    backbone.record_segments()
    assert bool(backbone.segments) == has_shared_memory
    machine.end()
