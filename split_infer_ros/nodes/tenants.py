"""Node ``tenants``: serves many cameras and models on one processor, and publishes each tenant's own detections."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from functools import partial
from itertools import product
from typing import Any

from rclpy.qos import QoSProfile

from split_infer_ros.autotuning.opening import tenant_opener
from split_infer_ros.errors import ConfigurationError, Notice, error_sentence
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.detections import Detections
from split_infer_ros.models.takes import Takes
from split_infer_ros.msg import PipelineReport
from split_infer_ros.nodes.enable_service import EnableService
from split_infer_ros.nodes.intra_process import IntraProcessPublisher
from split_infer_ros.nodes.managed import LOG_PERIOD_S, ManagedNode, configured, log_changes, open_trace
from split_infer_ros.nodes.parameters.tenants import TENANT, TENANTS, TenantsParameters
from split_infer_ros.nodes.process import run
from split_infer_ros.nodes.tenant_changes import AppliedTenants, TenantChanges
from split_infer_ros.nodes.tenant_reports import TenantReports
from split_infer_ros.nodes.tenant_senders import TenantSenders
from split_infer_ros.nodes.tenant_topics import TenantTopics
from split_infer_ros.nodes.vision_info import LABELS_PARAMETER
from split_infer_ros.runtime.cache_pruning import limit_cache
from split_infer_ros.runtime.faults import is_sticky
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.server import Server
from split_infer_ros.split.load import choose_device

REPORT_PERIOD_S = 0.5


class TenantsNode(ManagedNode[TenantsParameters]):
    """Subscribes to each tenant's camera; publishes ``NAME/detections``, ``NAME/vision_info`` and ``report``.

    A tenant with a task for point clouds subscribes to these, and publishes ``NAME/detections_3d``.
    With a transport to other processes, it publishes handles on ``NAME/features``, and heads publish the results.
    A thread of its own adds, changes and removes tenants, so that images do not wait meanwhile. So a parameter is
    accepted before its tenant has started. If the tenant cannot start, the node reports the fault.
    """

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__(
            "tenants",
            TenantsParameters,
            status_parameters=(f"{TENANT}.*.{LABELS_PARAMETER}",),
            allow_undeclared_parameters=True,  # tenants may be added later; the table checks their parameters
            **node_arguments,
        )
        self._enable = EnableService(self)
        self._pipeline: Server | None = None
        self._reports: TenantReports | None = None
        self._senders: TenantSenders | None = None
        self._changes: TenantChanges | None = None
        self._is_subscribed = False
        self._topics: dict[str, TenantTopics] = {}  # replaced as a whole, because results come on other threads
        self._faults: dict[str, ConfigurationError] = {}

    @property
    def pipeline(self) -> Server:
        """The server that all tenants share, while the node is configured.

        Raises:
            ConfigurationError: the node is not configured.
        """
        return configured(self._pipeline, "The node tenants")

    @property
    def running(self) -> Collection[str]:
        """The names of the tenants that run and have their topics."""
        return self._topics.keys()

    def configure(self) -> None:
        values = self.values
        limit_cache(values.cache_bytes)
        self._check_topics(values)
        database = Database.named(values.tuning_database)
        trace = open_trace(self, values.trace)
        self._senders = TenantSenders(self, values.transport, tenant_opener(database, self.get_logger().info))
        self.add_cleanup(self._senders.close)
        self._senders.open(values.tenants)
        pipeline = Server(
            values.settings,
            values.limits,
            self._publish_result,
            self._warn_of,
            device=choose_device(values.shared.device),
            open_model=self._senders.open_model,
            database=database,
            trace=trace,
            say=lambda model, line: self.get_logger().info(f"{model}: {line}"),
        )
        self._pipeline = pipeline
        self.add_cleanup(self._forget_pipeline)
        self.add_cleanup(pipeline.close)
        self.add_cleanup(lambda: pipeline.stop(0.0))  # a signal may come before this node is active
        publisher = IntraProcessPublisher(self, PipelineReport, "report", QoSProfile(depth=100))
        self.add_cleanup(publisher.destroy)
        self._reports = TenantReports(publisher, pipeline.view, now=lambda: self.get_clock().now().to_msg())
        self.add_cleanup(self._reports.close)
        self.add_cleanup(self._close_topics)
        changes = TenantChanges(self, pipeline, self._update_topics)
        self.add_cleanup(changes.close)
        self._update_topics(changes.apply(values))
        changes.start()
        self._changes = changes
        self.call_every(REPORT_PERIOD_S, self._report_and_tidy)
        unlisted = sorted(values.of.keys() - set(values.tenants))
        if unlisted:
            self.get_logger().warning(
                f"There are parameters of {', '.join(unlisted)}, but {TENANTS} does not list them."
            )

    def activate(self) -> None:
        self.pipeline.start()
        self._is_subscribed = True
        self._subscribe(self.values)

    def deactivate(self) -> None:
        self._is_subscribed = False
        for topics in self._topics.values():
            topics.subscribe(None)
        self.pipeline.stop(self.drain_s)
        self._report()

    def apply(self, values: TenantsParameters) -> None:
        assert self._changes is not None
        assert self._senders is not None
        self._check_topics(values)
        self._senders.open(values.tenants)
        before, after = self.values.settings, values.settings
        if after != before:
            self.pipeline.configure(after)
            log_changes(self, {"max_batch_size": before.batch_size}, {"max_batch_size": after.batch_size})
        self.pipeline.limits = values.limits
        for topics in self._topics.values():
            topics.limiter.max_rate_hz = values.max_rate_hz
        if self._faults or (values.tenants, values.of) != (self.values.tenants, self.values.of):
            self._changes.put(values)

    def report_device_loss(self) -> None:
        if self._topics:
            self._report()

    def _update_topics(self, applied: AppliedTenants) -> None:
        """Creates and removes topics so that each running tenant has its own, and logs new faults."""
        running, before = applied.running, self._topics
        kept = {name: topics for name, topics in before.items() if name in running and topics.takes is running[name][2]}
        for name in before.keys() - kept.keys():
            before[name].close()
        self._topics = {
            name: topics
            for name, (_, _, takes) in running.items()
            if (topics := kept.get(name) or self._open_topics(name, takes, applied))
        }
        for name, topics in self._topics.items():
            topics.set_model(*running[name][:2])
        if self._is_subscribed:
            self._subscribe(applied.values)
        for name, error in applied.faults.items():
            if str(error) != str(self._faults.get(name)):
                consequence = "stays as it was" if name in self._topics else "does not run"
                self.get_logger().error(f"Tenant {name} {consequence}: {error}")
        self._faults = applied.faults

    def _open_topics(self, name: str, takes: Takes, applied: AppliedTenants) -> TenantTopics | None:
        """Creates a tenant's topics. If that fails, the tenant has a fault, and the others go on."""
        try:
            intake, reaches_head = self.pipeline.intake(name), partial(self._reaches_head, name)
            return TenantTopics(self, name, takes, intake, self._enable, reaches_head)
        except Exception as error:
            applied.faults[name] = ConfigurationError(f"Its topics cannot be made: {error_sentence(error)}")
            return None

    def _reaches_head(self, name: str) -> bool:
        return self._senders is not None and self._senders.reaches_head(name)

    def _subscribe(self, values: TenantsParameters) -> None:
        for name, topics in self._topics.items():
            topics.subscribe(values.topic(name, topics.takes))

    def _forget_pipeline(self) -> None:
        self._pipeline = self._reports = self._changes = self._senders = None

    def _close_topics(self) -> None:
        for topics in self._topics.values():
            topics.close()
        self._topics, self._faults = {}, {}

    def _publish_result(self, name: str, origin: Origin, detections: Detections, labels: Sequence[str]) -> None:
        self._topics[name].publish(origin, detections, labels)

    def _warn_of(self, name: str, error: Exception) -> None:
        if is_sticky(error):
            self.device_loss.declare(error)
        elif isinstance(error, Notice):  # a notice comes once, so the throttle must not suppress it
            self.get_logger().warning(f"{name}: {error}")
        else:
            self.get_logger().warning(f"{name}: {error_sentence(error)}", throttle_duration_sec=LOG_PERIOD_S)

    def _report_and_tidy(self) -> None:
        self._report()
        if self._senders is not None:
            self._senders.close_unused(self.values.tenants)

    def _report(self) -> None:
        if self._reports is not None:
            cores_fault = self.pipeline.cores_fault
            faults = {name: topics.mismatch or cores_fault for name, topics in self._topics.items()}
            faults |= {name: str(error) for name, error in self._faults.items()}
            self._reports.publish(
                listed=self.values.tenants, running=self.running, faults=faults, device_loss=self.device_loss.sentence
            )

    def _check_topics(self, values: TenantsParameters) -> None:
        for name, takes in product(values.of, Takes):
            topic = values.topic(name, takes)
            try:
                self.resolve_topic_name(topic)
            except RuntimeError as error:  # from rcl
                parameter = "image_topic" if takes is Takes.IMAGES else "points_topic"
                raise ConfigurationError(f"{TENANT}.{name}.{parameter} cannot be '{topic}' ({error}).") from error


def main() -> int:
    """Runs a process with this node alone. Returns the exit code."""
    return run([TenantsNode])


if __name__ == "__main__":
    sys.exit(main())
