"""Publishes the tenants' reports: counts of tenants that run, and the state of the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from builtin_interfaces.msg import Time

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.msg import PipelineReport
from split_infer_ros.nodes.conversions import report_message
from split_infer_ros.nodes.intra_process import IntraProcessPublisher
from split_infer_ros.server.server_view import ServerView


class TenantReports:
    """Publishes one report for each listed tenant, and a last report for each tenant that was removed.

    Args:
        publisher: publishes the reports on ``report``.
        server: shows the counts of the tenants that run.
        now: returns the time of the system clock.
    """

    def __init__(self, publisher: IntraProcessPublisher, server: ServerView, now: Callable[[], Time]) -> None:
        self._publisher = publisher
        self._server = server
        self._now = now
        self._reported: set[str] = set()

    def publish(
        self, *, listed: Sequence[str], running: Collection[str], faults: Mapping[str, str], device_loss: str
    ) -> None:
        """Publishes the reports.

        Args:
            listed: the tenants that should run.
            running: the tenants that run and have their topics. The others are reported as loading or failed.
            faults: why a tenant does not run as it should, by the tenant's name.
            device_loss: why the process can no longer use the GPU; empty while it can.
        """
        for name in listed:
            fault = faults.get(name, "")
            if name in running:
                self._publish_counts(name, fault, device_loss)
            else:
                self._publish_state(name, PipelineReport.FAILED if fault else PipelineReport.LOADING, fault)
        self._publish_removed(self._reported - set(listed))
        self._reported = set(listed)

    def close(self) -> None:
        """Reports all tenants as removed."""
        self._publish_removed(self._reported)
        self._reported = set()

    def _publish_counts(self, name: str, fault: str, device_loss: str) -> None:
        try:
            report = self._server.report(name, time.monotonic())
        except ConfigurationError:  # the tenant was removed just now
            return
        state = PipelineReport.LOST if device_loss else PipelineReport.RUNS
        self._publisher.publish(
            report_message(report, self._now(), tenant=name, state=state, fault=device_loss or fault)
        )

    def _publish_removed(self, names: set[str]) -> None:
        for name in names:
            self._publish_state(name, PipelineReport.REMOVED)

    def _publish_state(self, name: str, state: int, fault: str = "") -> None:
        """Publishes the report of a tenant that has no counts."""
        self._publisher.publish(
            PipelineReport(stamp=self._now(), time=time.monotonic(), tenant=name, state=state, fault=fault)
        )
