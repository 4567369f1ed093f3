"""Node ``stats``: publishes the throughput and the diagnostics of a pipeline."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.qos import QoSProfile
from rclpy.timer import Timer
from std_msgs.msg import Header, String

from split_infer_ros.msg import PipelineReport, PipelineStats, SensorReading
from split_infer_ros.nodes.camera import ENDED_TOPIC
from split_infer_ros.nodes.endpoints import LATCHED, create_publisher, create_steady_timer, create_subscription
from split_infer_ros.nodes.health import PipelineHealth
from split_infer_ros.nodes.intra_process import IntraProcessPublisher, IntraProcessSubscription
from split_infer_ros.nodes.managed import LOG_PERIOD_S, ManagedNode
from split_infer_ros.nodes.parameters.table import NodeParameters
from split_infer_ros.nodes.process import run
from split_infer_ros.setting import setting
from split_infer_ros.telemetry.power import MeanPower, measures_power, total_watts
from split_infer_ros.telemetry.sensors import Reading, Sensors, SensorUnit

POWER_PERIOD_S = 0.2  # time between two readings of the sensors


@dataclass(frozen=True)
class StatsParameters(NodeParameters):
    """The parameters of the node ``stats``."""

    PURPOSE: ClassVar[str] = "Reports"

    period_s: float = setting(
        1.0, "Seconds between two messages, over which rates are averaged.", minimum=0.1, maximum=3600.0, read_only=True
    )
    camera_timeout_s: float = setting(
        5.0,
        "Seconds without a frame of any camera after which /diagnostics warns. Each tenant counts for itself. "
        "0: never.",
        minimum=0.0,
        maximum=86_400.0,
    )


class StatsNode(ManagedNode[StatsParameters]):
    """Publishes ``stats``, ``NAME/stats`` for each tenant, and ``/diagnostics``.

    It subscribes to ``report`` and to the camera's ``source_ended``.
    """

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__("stats", StatsParameters, **node_arguments)
        self._lock = threading.Lock()
        self._publish_lock = threading.Lock()  # two threads publish: the timer's, and one that reports a lost GPU
        self._health: dict[str, PipelineHealth] = {}  # by tenant; the name is empty for a pipeline of one model
        self._stats: dict[str, IntraProcessPublisher] = {}
        self._sensors = Sensors.find()
        self._power = MeanPower()
        self._reports: IntraProcessSubscription | None = None
        self._ended: Any = None  # the subscription to source_ended, while the node is active
        self._ended_source = ""
        self._own_timers: list[Timer] = []
        self._diagnostics: Any = None  # the publisher, while the node is configured

    def configure(self) -> None:
        self._stats = {"": self._create_publisher("")}
        self.add_cleanup(self._destroy_publishers)
        self._diagnostics = create_publisher(self, DiagnosticArray, "/diagnostics", QoSProfile(depth=10))
        self.add_cleanup(lambda: self.destroy_publisher(self._diagnostics))

    def activate(self) -> None:
        self._power = MeanPower()  # nobody read the sensors while this node was inactive
        self._reports = IntraProcessSubscription(
            self,
            message=PipelineReport,
            topic="report",
            qos=QoSProfile(depth=100),
            receive=self._receive_report,
            receive_remote=self._receive_report,
        )
        self._ended_source = ""
        self._ended = create_subscription(self, String, ENDED_TOPIC, self._receive_end, LATCHED)
        self._own_timers = [create_steady_timer(self, self.values.period_s, self._publish)]
        if measures_power(self._sensors.read()):
            self._own_timers.append(create_steady_timer(self, POWER_PERIOD_S, self._sample_power))

    def deactivate(self) -> None:
        for timer in self._own_timers:
            self.destroy_timer(timer)
        if self._reports is not None:
            self._reports.destroy()
            self.destroy_subscription(self._ended)

    def _destroy_publishers(self) -> None:
        for publisher in self._stats.values():
            publisher.destroy()

    def _receive_report(self, report: PipelineReport) -> None:
        now = time.monotonic()
        with self._lock:
            if report.state == PipelineReport.REMOVED:
                self._health.pop(report.tenant, None)
            elif report.tenant in self._health:
                self._health[report.tenant].update(report, now)
            else:
                self._health[report.tenant] = PipelineHealth(report, now)
        if report.state == PipelineReport.LOST:
            self._publish()  # the pipeline's process may end this node before the timer's next turn

    def _receive_end(self, ended: String) -> None:
        self._ended_source = ended.data

    def _publish(self) -> None:
        with self._publish_lock:
            temperatures = [reading for reading in self._read_sensors() if reading.unit is SensorUnit.CELSIUS]
            powers = self._power.take()
            with self._lock:
                health = dict(sorted(self._health.items()))
            stats = {tenant: each.take_rates() for tenant, each in health.items()}
            self._publish_stats(stats, [*powers, *temperatures])
            self._publish_diagnostics(health, stats)

    def _publish_stats(self, stats: Mapping[str, PipelineStats], readings: Sequence[Reading]) -> None:
        """Publishes the stats of each tenant.

        All tenants get the same energy: the machine's power / all images per second.
        """
        for tenant in self._stats.keys() - stats.keys() - {""}:
            self._stats.pop(tenant).destroy()
        watts = total_watts(readings)
        images_hz = sum(each.published_hz for each in stats.values())
        for tenant, each in stats.items():
            if tenant not in self._stats:
                self._stats[tenant] = self._create_publisher(tenant)
            each.joules_per_image = watts / images_hz if images_hz else math.nan
            each.sensors = [
                SensorReading(name=reading.name, value=reading.value, unit=reading.unit.value) for reading in readings
            ]
            self._stats[tenant].publish(each)

    def _publish_diagnostics(self, health: Mapping[str, PipelineHealth], stats: Mapping[str, PipelineStats]) -> None:
        statuses = [self._status(tenant, each, stats[tenant]) for tenant, each in health.items()]
        if not statuses:
            message = "No backbone reports: is one running and active, or any tenant listed?"
            statuses = [DiagnosticStatus(name=self._status_name(""), level=DiagnosticStatus.STALE, message=message)]
        header = Header(stamp=self.get_clock().now().to_msg())
        self._diagnostics.publish(DiagnosticArray(header=header, status=statuses))

    def _sample_power(self) -> None:
        with self._publish_lock:
            self._read_sensors()

    def _read_sensors(self) -> list[Reading]:
        """Reads all sensors and adds their power and energy to the mean power. Returns the readings."""
        readings = self._sensors.read()
        self._power.add(readings, time.monotonic())
        return readings

    def _create_publisher(self, tenant: str) -> IntraProcessPublisher:
        topic = f"{tenant}/stats" if tenant else "stats"
        return IntraProcessPublisher(self, PipelineStats, topic, QoSProfile(depth=10))

    def _status_name(self, tenant: str) -> str:
        """Returns the name of a tenant's line on ``/diagnostics``."""
        return "/".join(filter(None, [*self.get_namespace().split("/"), "pipeline", tenant]))

    def _status(self, tenant: str, health: PipelineHealth, stats: PipelineStats) -> DiagnosticStatus:
        level, message = health.diagnose(time.monotonic(), self.values.camera_timeout_s, self._ended_source)
        backbones = self.count_publishers("report")
        if backbones > 1 and level != DiagnosticStatus.STALE:
            level = DiagnosticStatus.WARN
            message = (
                f"{backbones} backbones report on {self.resolve_topic_name('report')}: give each pipeline a namespace "
                "of its own (-r __ns:=/NAME). If one was just killed, this passes."
            )
            self.get_logger().warning(message, throttle_duration_sec=LOG_PERIOD_S)
        values = health.diagnostic_values(stats)
        values |= {f"{reading.name} ({reading.unit})": f"{reading.value:.1f}" for reading in stats.sensors}
        status = DiagnosticStatus(name=self._status_name(tenant), level=level, message=message)
        status.values = [KeyValue(key=key, value=str(value)) for key, value in values.items()]
        return status


def main() -> int:
    """Runs a process with this node alone. Returns the exit code."""
    return run([StatsNode])


if __name__ == "__main__":
    sys.exit(main())
