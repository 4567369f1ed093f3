"""Several heads of one backbone: one computes, and another takes over when it ends."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from fork_server import Forker, ForkServer, NodeProcess
from ros_support import RELIABLE, START_S, Client, Received, image, wait_until
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from split_infer_ros.buffers import segment as segments
from split_infer_ros.msg import PipelineReport

OTHER_PROCESS = ("shared_memory", "network")
STANDS_BY = "It stands by"
# From a head's death until another's first detections: what the guide promises, and as much again for a busy machine.
TAKE_OVER_S = {"shared_memory": 2.0, "network": 7.0}
STANDBYS = ("two", "three", "four")  # each takes over from the one before, until the machine does not stall meanwhile
ON_THE_WAY = {"overrun", "middleware"}  # what a busy machine may drop
pytestmark = [pytest.mark.timeout(4 * START_S), pytest.mark.kills_nodes]


class HeadGroup:
    """A backbone, its heads and a camera, with all messages that they publish."""

    def __init__(self, domain: int, folder: Path, forker: Forker, transport: str) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.client = Client(self.context)
        self.fork_server = ForkServer(folder, forker)
        self._transport = transport
        self.detections, self.diagnostics, self.reports = Received(), Received(), Received()
        for message, topic, receive in (
            (Detection2DArray, "detections", self._receive),
            (DiagnosticArray, "/diagnostics", self.diagnostics.append),
            (PipelineReport, "report", self.reports.append),
        ):
            self.client.node.create_subscription(message, topic, receive, RELIABLE)
        self.received_at: list[float] = []
        images = self.client.node.create_publisher(Image, "image", 10)
        self.sent = 0
        self.heads: dict[str, NodeProcess] = {}
        self.backbone = self.fork_server.start("backbone", transport=transport)
        self._timer = self.client.node.create_timer(0.05, lambda: self._send(images))

    def close(self) -> None:
        """Ends all processes."""
        self.fork_server.__exit__(None, None, None)
        self.client.close()
        rclpy.try_shutdown(context=self.context)

    def add(self, *names: str) -> None:
        """Starts heads of these names at the same time."""
        for name in names:
            self.heads[name] = self.fork_server.start("head", paused=True, transport=self._transport, name=name)
        time.sleep(0.5)
        for name in names:
            self.heads[name].resume()

    def _receive(self, message: Any) -> None:
        """Records detections and when they came."""
        self.received_at.append(time.monotonic())
        self.detections.append(message)

    def flows(self, frames: int = 5) -> None:
        """Waits until so many more detections came."""
        known = len(self.detections)
        wait_until(lambda: len(self.detections) >= known + frames, lambda: f"detections: {self.printed}", START_S)

    def status_of(self, name: str) -> str:
        """Returns the last diagnostic message of a head."""
        return next(
            (
                status.message
                for array in reversed(list(self.diagnostics))
                for status in array.status
                if status.name == name
            ),
            "",
        )

    def active(self) -> str:
        """Returns the only head that does not stand by, once each has published its status."""

        def one() -> str:
            stand_by = [name for name in self.heads if self.status_of(name).startswith(STANDS_BY)]
            others = [name for name in self.heads if name not in stand_by and self.status_of(name)]
            return others[0] if len(others) == 1 and len(stand_by) == len(self.heads) - 1 else ""

        return str(
            wait_until(one, lambda: f"one active head: {[self.status_of(name) for name in self.heads]}", START_S)
        )

    def next_detections_after(self, moment: float) -> float:
        """Returns the longest time without detections after a moment, in seconds."""
        self.flows(20)
        times = [moment, *(received for received in self.received_at if received > moment)]
        return max(after - before for before, after in pairwise(times))

    @property
    def printed(self) -> str:
        """What all processes printed."""
        return "\n".join(node.printed[-2000:] for node in (self.backbone, *self.heads.values()))

    @property
    def dropped(self) -> dict[str, int]:
        """The backbone's dropped frames by reason."""
        return {entry.reason: entry.count for entry in self.reports[-1].dropped}

    def _send(self, images: Any) -> None:
        images.publish(image(stamp=self.sent))
        self.sent += 1


@pytest.fixture(params=OTHER_PROCESS)
def group(request: pytest.FixtureRequest, ros_domain: int, forker: Forker) -> Iterator[HeadGroup]:
    with tempfile.TemporaryDirectory(dir=segments.FOLDER) as folder:
        found = HeadGroup(ros_domain, Path(folder), forker, request.param)
        found.transport = request.param  # type: ignore[attr-defined]
        yield found
        found.close()


def stamps(messages: list[Any]) -> list[int]:
    return [message.header.stamp.sec * 1000 + message.header.stamp.nanosec for message in messages]


def test_one_of_two_simultaneous_heads_computes(group: HeadGroup) -> None:
    group.add("one", "two")
    group.flows()
    group.active()
    group.flows(20)
    found = stamps(list(group.detections))
    assert len(found) == len(set(found))  # none was computed twice
    assert "given back before" not in group.printed
    assert "refused" not in group.printed


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_standby_head_takes_over(group: HeadGroup, number: int) -> None:
    group.add("one")
    group.flows()
    active, bound_s = "one", TAKE_OVER_S[group.transport]  # type: ignore[attr-defined]
    for standby in STANDBYS:
        group.add(standby)
        assert group.active() == active
        begin = time.monotonic()
        head = group.heads.pop(active)
        if number == signal.SIGKILL:
            group.fork_server.kill(head)
        else:
            head.end(number)
        took_s = group.next_detections_after(begin)
        print(f"{group.transport}, {signal.Signals(number).name}: silent for {took_s:.2f} s")  # type: ignore[attr-defined]
        assert group.active() == standby
        active = standby
        if took_s < bound_s:
            break
    assert took_s < bound_s
    found = stamps(list(group.detections))
    assert len(found) == len(set(found))
    assert set(group.dropped) <= ON_THE_WAY | {"no_head", "reader_died", "lease_expired"}, group.printed
    group.add("last")  # it finds the place taken
    group.flows(20)
    assert group.active() == active
