"""What a configured backbone node runs: its stage with everything that the stage needs, and its reports."""

from __future__ import annotations

import time
from typing import Any

from rclpy.qos import QoSProfile

from split_infer_ros.autotuning.best_known import BestKnown
from split_infer_ros.autotuning.opening import Opened
from split_infer_ros.measurements.database import Database
from split_infer_ros.msg import PipelineReport
from split_infer_ros.nodes.conversions import report_message
from split_infer_ros.nodes.intra_process import IntraProcessPublisher
from split_infer_ros.nodes.managed import ManagedNode, open_trace
from split_infer_ros.nodes.parameters.backbone import BackboneParameters
from split_infer_ros.nodes.transports import SENDERS
from split_infer_ros.server.auto_split import AUTO, DWELL_S, AutoSplit
from split_infer_ros.server.backbone_stage import BackboneStage
from split_infer_ros.server.profiling.stored_profile import profile_finder
from split_infer_ros.server.rate_limiter import RateLimiter
from split_infer_ros.split.model import SplitModel


class BackbonePipeline:
    """The parts of a backbone node that exist from its configuration to its clean-up.

    Args:
        node: the backbone's node.
        model: whose backbone runs.
        best_known: what tuning found for the model.
        stage: runs the backbone.
        auto_split: chooses the split point while the parameter ``split_point`` is ``auto``.
        reports: publishes on ``report``.

    Attributes:
        stage: as given.
        limiter: limits the frames a second of each camera.
    """

    def __init__(
        self,
        node: ManagedNode[BackboneParameters],
        *,
        model: SplitModel,
        best_known: BestKnown,
        stage: BackboneStage,
        auto_split: AutoSplit,
        reports: IntraProcessPublisher,
    ) -> None:
        self.stage = stage
        self.limiter = RateLimiter(node.values.max_rate_hz)
        self._node = node
        self._model = model
        self._best_known = best_known
        self._auto_split = auto_split
        self._reports = reports

    @classmethod
    def open(cls, node: ManagedNode[BackboneParameters], opened: Opened) -> BackbonePipeline:
        """Allocates the parts. The node's clean-up gives them back, also after an error here.

        Raises:
            ConfigurationError: the parameters ask for what this machine cannot give.
        """
        values, model, best_known = node.values, opened.model, opened.best_known
        transport = SENDERS[values.transport](node, "")
        node.add_cleanup(transport.close)
        reports = IntraProcessPublisher(node, PipelineReport, "report", QoSProfile(depth=10))
        node.add_cleanup(reports.destroy)
        trace = open_trace(node, values.trace)
        database = Database.named(values.tuning_database)
        say = node.get_logger().info
        auto_split = AutoSplit(model.device.type, profile_finder(model, database, say), say, DWELL_S)
        settings = auto_split.begin(best_known.fill_in(values.settings), values.goal)
        # with ``auto`` the split point moves, and the backbone's work with it
        num_threads = 0 if values.stage.split_point == AUTO else best_known.backbone_threads(settings)
        stage = BackboneStage(
            model,
            settings,
            transport,
            node.warn,
            trace=trace,
            watch=auto_split.observe,
            database=database,
            num_threads=num_threads,
        )
        auto_split.attach(stage.configure)
        node.add_cleanup(auto_split.detach)
        node.add_cleanup(stage.close)
        pipeline = cls(node, model=model, best_known=best_known, stage=stage, auto_split=auto_split, reports=reports)
        node.add_cleanup(pipeline.stop)  # a signal may come after the threads' start and before the node is active
        return pipeline

    def start(self) -> None:
        """Starts the threads of the stage and of the automatic split point."""
        self.stage.start()
        self._auto_split.start()

    def stop(self, drain_s: float = 0.0) -> None:
        """Stops the threads.

        Args:
            drain_s: how long batches that are under way may take to finish, in seconds.
        """
        self._auto_split.stop()
        self.stage.stop(drain_s)

    def apply(self, values: BackboneParameters) -> None:
        """Applies new parameters.

        Raises:
            ConfigurationError: they are refused, and nothing has changed.
        """
        before = self._point()
        self._auto_split.configure(self._best_known.fill_in(values.settings), values.goal)
        self._node.log_changes(before, self._point())
        self.limiter.max_rate_hz = values.max_rate_hz

    def report(self, fault: str = "") -> None:
        """Publishes the counts and times, with the loss of the GPU if there was one.

        Args:
            fault: what else is wrong while the pipeline runs.
        """
        loss = self._node.device_loss
        fields: dict[str, Any] = {"state": PipelineReport.LOST, "fault": loss} if loss else {}
        if fault and not loss:
            fields["fault"] = fault
        stamp = self._node.get_clock().now().to_msg()
        self._reports.publish(report_message(self.stage.report(time.monotonic()), stamp, **fields))

    def _point(self) -> dict[str, object]:
        settings = self.stage.settings
        name = self._model.split_point(settings.split_point).name
        return {"split_point": name, "batch_size": settings.batch_size}
