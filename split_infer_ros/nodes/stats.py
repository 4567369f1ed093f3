"""Node ``stats``: throughput and diagnostics of a pipeline."""

from __future__ import annotations

import math
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.qos import QoSProfile
from std_msgs.msg import Header

from split_infer_ros.msg import PipelineReport, PipelineStats, SensorReading
from split_infer_ros.nodes.endpoints import advertise
from split_infer_ros.nodes.intra_process import IntraProcessPublisher, IntraProcessSubscription
from split_infer_ros.nodes.managed import LOG_PERIOD_S, ManagedNode
from split_infer_ros.nodes.parameters.table import NodeParameters, parameter
from split_infer_ros.nodes.process import run
from split_infer_ros.nodes.watch import Watch
from split_infer_ros.telemetry.power import MeanPower, total_watts
from split_infer_ros.telemetry.sensors import Reading, Sensors

POWER_PERIOD_S = 0.2  # how often sensors are read, at most


@dataclass(frozen=True)
class StatsParameters(NodeParameters):
    """What the stats node can be told."""

    period_s: float = parameter(
        1.0, "Seconds between two messages, over which rates are taken.", at_least=0.1, at_most=3600.0, read_only=True
    )
    camera_timeout_s: float = parameter(
        5.0, "After so long without a frame a camera is warned of; 0: never.", at_least=0.0, at_most=86_400.0
    )


class StatsNode(ManagedNode):
    """Hears ``report``; publishes ``stats``, of each tenant ``NAME/stats``, and ``/diagnostics``."""

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__("stats", StatsParameters, **node_arguments)
        self._lock = threading.Lock()
        self._publishing = threading.Lock()  # the timer's thread, and whichever says that a GPU was lost
        self._watches: dict[str, Watch] = {}  # by tenant; of a pipeline of one model the name is empty
        self._stats: dict[str, IntraProcessPublisher] = {}
        self._sensors = Sensors.find()

    def set_up(self) -> None:
        self._stats = {"": self._publisher("")}
        self.on_tear_down(self._leave)
        self._diagnostics = advertise(self, DiagnosticArray, "/diagnostics", QoSProfile(depth=10))
        self.on_tear_down(lambda: self.destroy_publisher(self._diagnostics))

    def begin(self) -> None:
        self._power = MeanPower()  # while this node was inactive, nobody read the sensors
        self._reports = IntraProcessSubscription(
            self, PipelineReport, "report", QoSProfile(depth=100), self._hear, from_outside=self._hear
        )
        self._timers = [self.every(self.values.period_s, self._publish)]
        if not math.isnan(total_watts(self._sensors.read())):
            self._timers.append(self.every(POWER_PERIOD_S, self._read_sensors))

    def end(self) -> None:
        for timer in self._timers:
            self.destroy_timer(timer)
        self._reports.destroy()

    def _leave(self) -> None:
        for publisher in self._stats.values():
            publisher.destroy()

    def _hear(self, report: PipelineReport) -> None:
        now = time.monotonic()
        with self._lock:
            if report.state == PipelineReport.REMOVED:
                self._watches.pop(report.tenant, None)
            elif report.tenant in self._watches:
                self._watches[report.tenant].hear(report, now)
            else:
                self._watches[report.tenant] = Watch(report, now)
        if report.state == PipelineReport.LOST:
            self._publish()  # its process may take this one along, before the next turn of the timer

    def _publish(self) -> None:
        with self._publishing:
            self._publish_all()

    def _publish_all(self) -> None:
        readings = self._read()
        watts = self._power.take()
        with self._lock:
            watches = dict(sorted(self._watches.items()))
        for tenant in self._stats.keys() - watches.keys() - {""}:
            self._stats.pop(tenant).destroy()
        told = {tenant: watch.rates() for tenant, watch in watches.items()}
        images_hz = sum(stats.published_hz for stats in told.values())
        for tenant, stats in told.items():
            if tenant not in self._stats:
                self._stats[tenant] = self._publisher(tenant)
            stats.joules_per_image = watts / images_hz if images_hz else math.nan
            stats.sensors = [SensorReading(name=it.name, value=it.value, unit=it.unit.value) for it in readings]
            self._stats[tenant].publish(stats)
        statuses = [self._status(tenant, watch, told[tenant]) for tenant, watch in watches.items()]
        if not statuses:
            message = "No backbone reports: is one running and active, or any tenant listed?"
            statuses = [DiagnosticStatus(name=self._line(""), level=DiagnosticStatus.STALE, message=message)]
        header = Header(stamp=self.get_clock().now().to_msg())
        self._diagnostics.publish(DiagnosticArray(header=header, status=statuses))

    def _read_sensors(self) -> None:
        with self._publishing:
            self._read()

    def _read(self) -> list[Reading]:
        """What all sensors say; power is averaged from all such looks."""
        readings = self._sensors.read()
        self._power.add(total_watts(readings), time.monotonic())
        return readings

    def _publisher(self, tenant: str) -> IntraProcessPublisher:
        topic = f"{tenant}/stats" if tenant else "stats"
        return IntraProcessPublisher(self, PipelineStats, topic, QoSProfile(depth=10))

    def _line(self, tenant: str) -> str:
        """The name of its line on ``/diagnostics``."""
        return "/".join(filter(None, [*self.get_namespace().split("/"), "pipeline", tenant]))

    def _status(self, tenant: str, watch: Watch, stats: PipelineStats) -> DiagnosticStatus:
        level, message = watch.verdict(time.monotonic(), self.values.camera_timeout_s)
        backbones = self.count_publishers("report")
        if backbones > 1 and level != DiagnosticStatus.STALE:
            level = DiagnosticStatus.WARN
            message = (
                f"{backbones} backbones report on {self.resolve_topic_name('report')}: give each pipeline a namespace "
                "of its own (-r __ns:=/NAME). If one was just killed, this passes."
            )
            self.get_logger().warning(message, throttle_duration_sec=LOG_PERIOD_S)
        facts = watch.facts(stats) | {f"{it.name} ({it.unit})": f"{it.value:.1f}" for it in stats.sensors}
        status = DiagnosticStatus(name=self._line(tenant), level=level, message=message)
        status.values = [KeyValue(key=key, value=str(value)) for key, value in facts.items()]
        return status


def main() -> int:
    """Run this node alone."""
    return run([StatsNode])


if __name__ == "__main__":
    sys.exit(main())
