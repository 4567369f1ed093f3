"""The parts that a configured backbone node runs: its stage, what the stage needs, and the reports."""

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
from split_infer_ros.nodes.managed import ManagedNode, log_changes, open_trace
from split_infer_ros.nodes.parameters.backbone import BackboneParameters
from split_infer_ros.nodes.transports import SENDERS, Sender
from split_infer_ros.server.auto_split import AutoSplit
from split_infer_ros.server.backbone_stage import BackboneStage
from split_infer_ros.server.improving.split_rivals import improve_with, with_split_rivals
from split_infer_ros.server.profiling.stored_profile import profile_finder
from split_infer_ros.server.rate_limiter import RateLimiter
from split_infer_ros.server.split_chooser import AUTO, DEFAULT, DWELL_S, SplitChooser
from split_infer_ros.split.model import SplitModel


class BackbonePipeline:
    """Holds the parts of a backbone node that exist from its configuration to its clean-up.

    Args:
        node: the backbone's node.
        model: provides the backbone.
        best_known: the best results of tuning for the model.
        transport: sends handles to the heads.
        stage: runs the backbone.
        auto_split: chooses the split point while the parameter ``split_point`` is ``auto``.
        reports: publishes reports on ``report``.

    Attributes:
        stage: runs the backbone.
        limiter: limits how many frames per second each camera may send.
    """

    def __init__(
        self,
        node: ManagedNode[BackboneParameters],
        *,
        model: SplitModel,
        best_known: BestKnown,
        transport: Sender,
        stage: BackboneStage,
        auto_split: AutoSplit,
        reports: IntraProcessPublisher,
    ) -> None:
        self.stage = stage
        self.limiter = RateLimiter(node.values.max_rate_hz)
        self._node = node
        self._model = model
        self._best_known = best_known
        self._transport = transport
        self._auto_split = auto_split
        self._reports = reports

    @classmethod
    def open(cls, node: ManagedNode[BackboneParameters], opened: Opened) -> BackbonePipeline:
        """Allocates the parts of a pipeline. The node's clean-up frees them, also if this method raises.

        Args:
            node: the backbone's node.
            opened: the loaded model, and the best results of tuning for it.

        Raises:
            ConfigurationError: the parameters ask for something that this machine cannot provide.
        """
        values, model, best_known = node.values, opened.model, opened.best_known
        transport = SENDERS[values.transport](node, "")
        node.add_cleanup(transport.close)
        reports = IntraProcessPublisher(node, PipelineReport, "report", QoSProfile(depth=10))
        node.add_cleanup(reports.destroy)
        trace = open_trace(node, values.trace)
        database = Database.named(values.tuning_database)
        say = node.get_logger().info
        with values.cores.backbone.bound():
            chooser = SplitChooser(
                model.device.type,
                profile_finder(model, database, say, values.cores),
                DWELL_S,
                default=model.split_point(DEFAULT).name,
                improve=improve_with(opened.profiles, values.improve),
            )
            auto_split = AutoSplit(chooser, say)
            settings = auto_split.begin(best_known.fill_in(values.settings), values.goal)
            if values.stage.split_point != AUTO:  # with ``auto`` it moves, so no number for one split point fits
                model = best_known.with_tuned_threads(model, settings)
        stage = BackboneStage(
            model,
            settings,
            transport,
            node.warn,
            trace=trace,
            watch=auto_split.observe,
            database=database,
            rivals=with_split_rivals(opened.rivals, auto_split, opened.profiles),
            say=say,
        )
        auto_split.attach(stage.configure)
        node.add_cleanup(auto_split.detach)
        node.add_cleanup(stage.close)
        pipeline = cls(
            node,
            model=model,
            best_known=best_known,
            transport=transport,
            stage=stage,
            auto_split=auto_split,
            reports=reports,
        )
        node.add_cleanup(pipeline.stop)  # a signal may come after the threads' start and before the node is active
        return pipeline

    def reaches_head(self) -> bool:
        """Returns whether a head would get a batch that is sent now."""
        return self._transport.heads_reached > 0

    def start(self) -> None:
        """Starts the threads of the stage and of the automatic split point."""
        self.stage.start()
        with self._node.values.cores.backbone.bound():  # its thread looks up what was measured on these cores
            self._auto_split.start()

    def stop(self, drain_s: float = 0.0) -> None:
        """Stops the threads of the stage and of the automatic split point.

        Args:
            drain_s: how long frames in flight may take to finish, in seconds. The frames left after that are dropped.
        """
        self._auto_split.stop()
        self.stage.stop(drain_s)

    def apply(self, values: BackboneParameters) -> None:
        """Applies new parameters while frames flow.

        Raises:
            ConfigurationError: the parameters are refused, and nothing has changed.
        """
        before = self._point()
        with values.cores.backbone.bound():
            self._auto_split.configure(self._best_known.fill_in(values.settings), values.goal)
        log_changes(self._node, before, self._point())
        self.limiter.max_rate_hz = values.max_rate_hz

    def report(self, fault: str = "") -> None:
        """Publishes a report: the counts of frames and the times of the stages. If the GPU is lost, the report says so.

        Args:
            fault: a sentence about another fault. It is published unless the GPU is lost.
        """
        loss = self._node.device_loss.sentence
        fault = loss or " ".join(filter(None, (fault, self.stage.cores_fault)))
        fields: dict[str, Any] = {"state": PipelineReport.LOST} if loss else {}
        if fault:
            fields["fault"] = fault
        stamp = self._node.get_clock().now().to_msg()
        self._reports.publish(report_message(self.stage.report(time.monotonic()), stamp, **fields))

    def _point(self) -> dict[str, object]:
        settings = self.stage.settings
        name = self._model.split_point(settings.split_point).name
        return {"split_point": name, "batch_size": settings.batch_size}
