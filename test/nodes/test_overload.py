"""Overload and long runs: the process holds no more and more resources, and results stay recent."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from rclpy.context import Context
from ros_processes import Footprint, Process
from ros_support import START_S, Client, Received, wait_until
from vision_msgs.msg import Detection2DArray

from split_infer_ros.msg import PipelineReport

MB = 2**20
SLACK_BYTES = 48 * MB  # what allocators keep; images that queue up would be ten times as much within seconds
POOL_SLOTS = 4
SOAK_S = float(os.environ.get("SOAK_S", "600"))  # of one that was asked for, an hour
KINDS = {"memory": SLACK_BYTES, "threads": 1, "files": 4, "segments": 4}  # and by how much each may differ
NODES = (
    "--ros-args",
    "-p",
    "weights:=none",
    "-p",
    "width:=640",
    "-p",
    "height:=480",
    "-p",
    f"pool_slots:={POOL_SLOTS}",
)


class ProcessWatcher:
    """Records the age of the newest results, and what the process holds."""

    def __init__(self, client: Client, process: Process) -> None:
        self.ages: list[float] = []
        self.footprints: list[Footprint] = []
        self._process = process
        self.reports: Received = client.subscribe(PipelineReport, "report")
        client.node.create_subscription(Detection2DArray, "detections", self._receive, 100)

    def _receive(self, found: Detection2DArray) -> None:
        stamp = found.header.stamp
        self.ages.append(time.time() - stamp.sec - stamp.nanosec / 1e9)

    def watch(self, seconds: float, every: float) -> None:
        """Records the footprint of the process again and again."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self._process.runs, self._process.printed
            self.footprints.append(Footprint.of(self._process.pid))
            time.sleep(every)

    def assert_stays_flat(self) -> None:
        """Asserts that the last third of the footprints is no larger than the first."""
        third = len(self.footprints) // 3
        for kind, slack in KINDS.items():
            values = [getattr(one, kind) for one in self.footprints]
            assert statistics.median(values[-third:]) <= statistics.median(values[:third]) + slack, (kind, values)

    def slopes(self) -> dict[str, float]:
        """Returns the growth of each resource in an hour, by least squares over the last two thirds."""
        late = self.footprints[len(self.footprints) // 3 :]
        hours = np.linspace(0.0, (late[-1].at - late[0].at) / 3600, len(late))
        return {kind: float(np.polyfit(hours, [getattr(one, kind) for one in late], 1)[0]) for kind in KINDS}

    def assert_ledger_closes(self) -> None:
        """Asserts that the ledger closes in every report."""
        for report in self.reports:
            dropped = sum(entry.count for entry in report.dropped)
            assert report.received == report.published + dropped + report.in_flight


@pytest.fixture
def client(context: Context) -> Iterator[Client]:
    found = Client(context)
    yield found
    found.close()


def flood(client: Client, seconds: float, transport: str) -> None:
    """Sends three times as many frames as the pipeline can take."""
    with Process("pipeline", *NODES, "-p", f"transport:={transport}", "-p", "drop_policy:=block") as process:
        watcher = ProcessWatcher(client, process)
        assert client.set("camera", rate_hz=0.0) == [""]
        watcher.reports.wait_for_one(lambda report: report.published > 30, "the pipeline at its limit", START_S)
        watcher.reports.wait_for(len(watcher.reports) + 4)
        capacity = max(  # the machine may stall between some reports
            (after.published - before.published) / (after.time - before.time)
            for before, after in pairwise(watcher.reports[:])
        )
        assert client.set("camera", rate_hz=min(1000.0, 3 * capacity)) == [""]
        assert client.set("backbone", drop_policy="latest") == [""]
        time.sleep(2.0)
        watcher.ages.clear()
        before = watcher.reports[-1]
        watcher.watch(seconds, every=0.2)
        after = watcher.reports[-1]
        published = after.published - before.published
        assert after.received - before.received > 1.2 * published  # else there was no overload
        assert {entry.reason for entry in after.dropped} == {"overrun"}
        watcher.assert_stays_flat()
        watcher.assert_ledger_closes()
        # A frame waits for a batch, in the slot pool, and for the head, but never for old frames.
        period = (after.time - before.time) / published
        assert statistics.median(watcher.ages) < (POOL_SLOTS + 3) * period
        assert client.set("camera", rate_hz=1.0) == [""]
        wait_until(lambda: watcher.reports[-1].in_flight <= 1, "the slot pool to be empty")


@pytest.mark.timeout(4 * START_S)
@pytest.mark.parametrize("transport", ["intra_process", pytest.param("shared_memory", marks=pytest.mark.slow)])
def test_overload_costs_only_the_dropped_frames(client: Client, transport: str) -> None:
    flood(client, 6.0, transport)


@pytest.mark.slow
def test_overload_for_a_minute(client: Client) -> None:
    flood(client, 60.0, "intra_process")


@pytest.mark.slow
@pytest.mark.timeout(SOAK_S + 300)
@pytest.mark.parametrize("transport", ["intra_process", "shared_memory"])
def test_long_run_leaks_nothing(client: Client, transport: str) -> None:
    """Runs for ten minutes, or for SOAK_S seconds if that environment variable is set."""
    with Process("pipeline", *NODES, "-p", f"transport:={transport}", "-p", "rate_hz:=5.0") as process:
        watcher = ProcessWatcher(client, process)
        watcher.reports.wait_for_one(lambda report: report.published > 30, "frames flowing", START_S)
        watcher.watch(SOAK_S, every=2.0)
        last = watcher.reports[-1]
        print(f"{transport}, {SOAK_S:g} s: {watcher.footprints[0]} to {watcher.footprints[-1]}")
        print(f"slopes an hour: {watcher.slopes()}; published {last.published}, in flight {last.in_flight}")
        watcher.assert_stays_flat()
        watcher.assert_ledger_closes()
        assert len(watcher.ages) > SOAK_S
        seen = len(watcher.reports)
        watcher.reports.wait_for_one(  # between two frames of a camera that is slow
            lambda report: report.time > last.time and not report.in_flight and not report.slots_used,
            lambda: f"nothing under way: {watcher.reports[seen:]}",
        )
