"""Node ``tenants``: many cameras and models on one processor; images in, each tenant's own detections out."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from rclpy.qos import QoSProfile

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.detections import Detections
from split_infer_ros.msg import PipelineReport
from split_infer_ros.nodes.conversions import report_message
from split_infer_ros.nodes.enable import Enable
from split_infer_ros.nodes.intra_process import IntraProcessPublisher
from split_infer_ros.nodes.labels import LABELS
from split_infer_ros.nodes.managed import LOG_PERIOD_S, ManagedNode, in_words, open_trace
from split_infer_ros.nodes.parameters.tenants import TENANTS, TenantsParameters
from split_infer_ros.nodes.process import run
from split_infer_ros.nodes.tenant_topics import TenantTopics
from split_infer_ros.pipeline.frame import Origin
from split_infer_ros.runtime.faults import is_sticky
from split_infer_ros.runtime.num_threads import use_one_thread
from split_infer_ros.runtime.worker_thread import WorkerThread
from split_infer_ros.serving.shared_pipeline import SharedPipeline

REPORT_PERIOD_S = 0.5
DRAIN_S = 2.0
LOST_DRAIN_S = 0.5  # for what heads have, where the GPU is lost and the process is about to end


@dataclass(frozen=True)
class Arrangement:
    """What came of a change: who runs then, with which model and labels, and who does not run as was asked, and why."""

    values: TenantsParameters
    running: Mapping[str, tuple[str, Sequence[str]]]
    faults: dict[str, ConfigurationError]


class TenantsNode(ManagedNode):
    """Hears each tenant's camera; publishes ``NAME/detections``, ``NAME/vision_info`` and, for each, ``report``.

    Tenants come, change and go on a thread of their own: models take their time to load, and images must not wait for
    them. So a tenant that cannot be started refuses no parameter; it is reported.
    """

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__(
            "tenants",
            TenantsParameters,
            told=(f"{TENANTS}.*.{LABELS}",),
            allow_undeclared_parameters=True,  # which are checked: rows of tenants to come
            **node_arguments,
        )
        self._enable = Enable(self)
        self._listening = False
        self._topics: dict[str, TenantTopics] = {}  # replaced as a whole: results come on other threads
        self._faults: dict[str, ConfigurationError] = {}
        self._reported: set[str] = set()

    def set_up(self) -> None:
        values = self.values
        self._check_topics(values)
        database = Database.named(values.tuning_database)
        trace = open_trace(self)
        self._pipeline = SharedPipeline(values.settings, values.limits, self._deliver, self._complain, database, trace)
        self.on_tear_down(self._pipeline.close)
        self.on_tear_down(lambda: self._pipeline.stop(0.0))  # should a signal come before this node is active
        self._reports = IntraProcessPublisher(self, PipelineReport, "report", QoSProfile(depth=100))
        self.on_tear_down(self._reports.destroy)
        self._to_report = report_message(lambda: self.get_clock().now().to_msg())
        self.on_tear_down(self._leave)
        self._arrange(self._try(values))
        self._changed: SimpleQueue[Arrangement] = SimpleQueue()
        self._turn = self.create_guard_condition(self._take_turn)
        self.on_tear_down(lambda: self.destroy_guard_condition(self._turn))
        self._changes = WorkerThread("tenants", self._follow, use_one_thread)
        self._changes.start()
        self.on_tear_down(self._changes.stop)
        timer = self.every(REPORT_PERIOD_S, self._report)
        self.on_tear_down(lambda: self.destroy_timer(timer))
        idle = sorted(values.of.keys() - set(values.tenants))
        if idle:
            self.get_logger().warning(f"{TENANTS} does not list {', '.join(idle)}, of which there are parameters.")

    def begin(self) -> None:
        self._pipeline.start()
        self._listening = True
        self._listen(self.values)

    def end(self) -> None:
        self._listening = False
        for topics in self._topics.values():
            topics.listen(None)
        self._pipeline.stop(LOST_DRAIN_S if self.loss else DRAIN_S)
        self._report()

    def say_lost(self) -> None:
        if self._topics:
            self._report()

    def change(self, values: TenantsParameters) -> None:
        self._check_topics(values)
        if values.settings != self.values.settings:
            self._pipeline.configure(values.settings)
        self._pipeline.limits = values.limits
        for topics in self._topics.values():
            topics.limiter.max_rate_hz = values.max_rate_hz
        if self._faults or (values.tenants, values.of) != (self.values.tenants, self.values.of):
            self._changes.put(values)

    def _follow(self, values: TenantsParameters) -> None:
        """Change the tenants (on a thread of its own); their topics follow on the executor's thread, at its next turn.

        (An endpoint that is destroyed on another thread ends an executor that is just looking at it.)
        """
        self._changed.put(self._try(values))
        self._turn.trigger()

    def _try(self, values: TenantsParameters) -> Arrangement:
        try:
            faults = self._pipeline.set_tenants(values.wanted)
        except Exception as error:  # whatever one change does, the next one gets its chance
            if is_sticky(error):
                self.lose_device(error)
            missing = set(values.tenants) - self._pipeline.tenants.keys()
            faults = dict.fromkeys(missing, ConfigurationError(in_words(error)))
        running = self._pipeline.tenants
        return Arrangement(
            values, {it.name: (it.model, self._pipeline.labels(it.name)) for it in running.values()}, faults
        )

    def _take_turn(self) -> None:
        while not self._changed.empty():
            self._arrange(self._changed.get())

    def _arrange(self, outcome: Arrangement) -> None:
        """Give those who run their topics, and say who does not."""
        running, before = outcome.running, self._topics
        self._topics = {
            name: before.get(name) or TenantTopics(self, name, f"{TENANTS}.{name}.", self._pipeline, self._enable)
            for name in running
        }
        for name in before.keys() - running.keys():
            before[name].close()
        for name, (model, labels) in running.items():
            self._topics[name].tell(model, labels)
        if self._listening:
            self._listen(outcome.values)
        for name, error in outcome.faults.items():
            if str(error) != str(self._faults.get(name)):
                what = "stays as it was" if name in running else "does not run"
                self.get_logger().error(f"Tenant {name} {what}: {error}")
        self._faults = outcome.faults

    def _listen(self, values: TenantsParameters) -> None:
        for name, topics in self._topics.items():
            topics.listen(values.image_topic(name))

    def _leave(self) -> None:
        """Give back what tenants have in ROS."""
        for topics in self._topics.values():
            topics.close()
        self._topics, self._faults = {}, {}
        self._say_removed(self._reported)

    def _deliver(self, name: str, origin: Origin, detections: Detections, labels: Sequence[str]) -> None:
        self._topics[name].deliver(origin, detections, labels)

    def _complain(self, name: str, error: Exception) -> None:
        if is_sticky(error):
            self.lose_device(error)
        else:
            self.get_logger().warning(f"{name}: {in_words(error)}", throttle_duration_sec=LOG_PERIOD_S)

    def _report(self) -> None:
        topics, faults, listed = self._topics, self._faults, self.values.tenants
        for name in listed:
            fault = str(faults.get(name, ""))
            if name in topics:
                try:
                    report = self._pipeline.report(name, time.monotonic())
                except ConfigurationError:  # it was removed just now
                    continue
                state = PipelineReport.LOST if self.loss else PipelineReport.RUNS
                self._reports.publish(self._to_report(report, tenant=name, state=state, fault=self.loss or fault))
            else:
                self._say(name, PipelineReport.FAILED if fault else PipelineReport.LOADING, fault)
        self._say_removed(self._reported - set(listed))
        self._reported = set(listed)

    def _say_removed(self, names: set[str]) -> None:
        for name in names:
            self._say(name, PipelineReport.REMOVED)
        self._reported = self._reported - names

    def _say(self, name: str, state: int, fault: str = "") -> None:
        """Report of a tenant of which nothing is counted."""
        stamp = self.get_clock().now().to_msg()
        self._reports.publish(PipelineReport(stamp=stamp, time=time.monotonic(), tenant=name, state=state, fault=fault))

    def _check_topics(self, values: TenantsParameters) -> None:
        for name in values.of:
            topic = values.image_topic(name)
            try:
                self.resolve_topic_name(topic)
            except RuntimeError as error:  # rcl's
                raise ConfigurationError(f"{TENANTS}.{name}.image_topic cannot be '{topic}' ({error}).") from error


def main() -> int:
    """Run this node alone."""
    return run([TenantsNode])


if __name__ == "__main__":
    sys.exit(main())
