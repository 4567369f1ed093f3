"""Node ``stats``: throughput and diagnostics of a pipeline."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.qos import QoSProfile
from std_msgs.msg import Header

from split_infer_ros.msg import PipelineReport, PipelineStats, SensorReading
from split_infer_ros.nodes.conversions import counts_of
from split_infer_ros.nodes.endpoints import advertise
from split_infer_ros.nodes.intra_process import IntraProcessPublisher, IntraProcessSubscription
from split_infer_ros.nodes.managed import LOG_PERIOD_S, ManagedNode
from split_infer_ros.nodes.parameters import parameter
from split_infer_ros.nodes.process import run
from split_infer_ros.telemetry.sensors import Reading, Sensors

SILENT_S = 3.0


@dataclass(frozen=True)
class StatsParameters:
    """What the stats node can be told."""

    period_s: float = parameter(
        1.0, "Seconds between two messages, over which rates are taken.", at_least=0.1, at_most=3600.0, read_only=True
    )
    autostart: bool = parameter(True, "Configure and activate at start.", read_only=True)


class StatsNode(ManagedNode):
    """Hears ``report``; publishes ``stats`` and ``/diagnostics``."""

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__("stats", StatsParameters, **node_arguments)
        self._newest: PipelineReport | None = None
        self._before: PipelineReport | None = None
        self._heard = 0.0
        self._sensors = Sensors()

    def set_up(self) -> None:
        self._stats = IntraProcessPublisher(self, PipelineStats, "stats", QoSProfile(depth=10))
        self.on_tear_down(self._stats.destroy)
        self._diagnostics = advertise(self, DiagnosticArray, "/diagnostics", QoSProfile(depth=10))
        self.on_tear_down(lambda: self.destroy_publisher(self._diagnostics))

    def begin(self) -> None:
        self._heard = time.monotonic()
        self._reports = IntraProcessSubscription(
            self, PipelineReport, "report", QoSProfile(depth=10), self._hear, from_outside=self._hear
        )
        self._timer = self.every(self.values.period_s, self._publish)

    def end(self) -> None:
        self.destroy_timer(self._timer)
        self._reports.destroy()

    def _hear(self, report: PipelineReport) -> None:
        self._heard = time.monotonic()
        self._newest = report

    def _publish(self) -> None:
        newest, readings = self._newest, self._sensors.read()
        if newest is not None:
            stats = self._rates(self._before or newest, newest)
            stats.sensors = [SensorReading(name=it.name, value=it.value, unit=it.unit) for it in readings]
            self._stats.publish(stats)
            self._before = newest
        header = Header(stamp=self.get_clock().now().to_msg())
        self._diagnostics.publish(DiagnosticArray(header=header, status=[self._status(newest, readings)]))

    def _rates(self, before: PipelineReport, newest: PipelineReport) -> PipelineStats:
        stats = PipelineStats(report=newest)
        stats.header.stamp = newest.stamp
        passed = newest.time - before.time
        # a backbone that was configured anew counts from zero again
        if passed > 0 and newest.received >= before.received:
            stats.period_s = passed
            stats.received_hz = (newest.received - before.received) / passed
            stats.published_hz = (newest.published - before.published) / passed
            dropped = sum(counts_of(newest).dropped.values()) - sum(counts_of(before).dropped.values())
            stats.dropped_hz = dropped / passed
        return stats

    def _status(self, report: PipelineReport | None, readings: Sequence[Reading]) -> DiagnosticStatus:
        status = DiagnosticStatus(name=f"{self.get_namespace().rstrip('/')}/pipeline".lstrip("/"))
        if report is None or time.monotonic() - self._heard > SILENT_S:
            status.level = DiagnosticStatus.STALE
            status.message = "No backbone reports: is one running and active?"
            return status
        counts = counts_of(report)
        backbones = self.count_publishers("report")
        if backbones > 1:
            status.level = DiagnosticStatus.WARN
            status.message = (
                f"{backbones} backbones report on {self.resolve_topic_name('report')}: give each pipeline a namespace "
                "of its own (-r __ns:=/NAME). If one was just killed, this passes."
            )
            self.get_logger().warning(status.message, throttle_duration_sec=LOG_PERIOD_S)
        elif not counts.balanced:
            status.level = DiagnosticStatus.ERROR
            status.message = "Frames were lost without a name."
        elif counts.received and not counts.published and not counts.in_flight:
            status.level = DiagnosticStatus.WARN
            status.message = "Frames come in and none goes out."
        else:
            status.level = DiagnosticStatus.OK
            status.message = "Frames flow." if counts.received else "No frame has come in yet."
        facts = {
            "model": report.model,
            "device": report.device,
            "split_point": report.split_point,
            "received": counts.received,
            "published": counts.published,
            "in flight": counts.in_flight,
            **{f"dropped: {reason}": count for reason, count in counts.dropped.items()},
            "latency p50 (ms)": f"{report.latency_p50_ms:.1f}",
            "latency p99 (ms)": f"{report.latency_p99_ms:.1f}",
            "ring slots": f"{report.ring_used} of {report.ring_slots}",
            "memory": f"{report.memory}: {report.memory_reason}",
            "memory of features (bytes)": f"{report.ring_bytes:,}",
            "memory of staging (bytes)": f"{report.staging_bytes:,}",
            **{f"{reading.name} ({reading.unit})": f"{reading.value:.1f}" for reading in readings},
        }
        status.values = [KeyValue(key=key, value=str(value)) for key, value in facts.items()]
        return status


def main() -> int:
    """Run this node alone."""
    return run([StatsNode])


if __name__ == "__main__":
    sys.exit(main())
