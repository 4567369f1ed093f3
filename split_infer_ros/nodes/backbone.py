"""Node ``backbone``: images in, handles to features out."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rclpy.qos import QoSProfile

from split_infer_ros.autotuning.best_known import BestKnown, find_best_known
from split_infer_ros.autotuning.trial_process import TrialProcess
from split_infer_ros.autotuning.tune import Tuner
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database
from split_infer_ros.msg import PipelineReport
from split_infer_ros.nodes.conversions import report_message
from split_infer_ros.nodes.enable import Enable
from split_infer_ros.nodes.image_input import ImageInput
from split_infer_ros.nodes.intra_process import IntraProcessPublisher
from split_infer_ros.nodes.managed import ManagedNode, open_trace
from split_infer_ros.nodes.parameters.backbone import BackboneParameters
from split_infer_ros.nodes.process import run
from split_infer_ros.nodes.transports import SENDERS
from split_infer_ros.pipeline.auto_split import AUTO, AutoSplit
from split_infer_ros.pipeline.backbone_stage import BackboneStage
from split_infer_ros.pipeline.memory_choice import MemoryAdvisor
from split_infer_ros.pipeline.rate_limiter import RateLimiter
from split_infer_ros.pipeline.stored_profile import profile_model
from split_infer_ros.runtime.captures import empty_cache
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.profile import Profile

REPORT_PERIOD_S = 0.5
DRAIN_S = 2.0
LOST_DRAIN_S = 0.5  # for what heads have, where the GPU is lost and the process is about to end
DWELL_S = 5.0  # for so long another split point must be better before split_point auto takes it


class BackboneNode(ManagedNode):
    """Subscribes to ``image``, publishes ``features`` (handles) and ``report``."""

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__("backbone", BackboneParameters, **node_arguments)
        self._stage: BackboneStage | None = None
        self._enable = Enable(self)

    @property
    def stage(self) -> BackboneStage:
        """The stage, while configured."""
        if self._stage is None:
            raise ConfigurationError("The backbone is not configured yet.")
        return self._stage

    def set_up(self) -> None:
        values = self.values
        self._check_topics(values.image_topics)
        self._model = self._load()
        self.on_tear_down(self._forget)
        self._tuned = self._find_best_known()
        self.get_logger().info(f"{values.model}: {self._tuned}")
        self._model = self._load(self._tuned.execution_config)
        transport = SENDERS[values.transport](self, self._model)
        self.on_tear_down(transport.close)
        self._reports = IntraProcessPublisher(self, PipelineReport, "report", QoSProfile(depth=10))
        self.on_tear_down(self._reports.destroy)
        self._to_report = report_message(lambda: self.get_clock().now().to_msg())
        trace = open_trace(self)
        advisor = MemoryAdvisor(self._model.device, self._database())
        self._split = AutoSplit(self._model.device.type, self._find_profile, self.get_logger().info, DWELL_S)
        settings = self._split.begin(self._tuned.fill_in(values.settings), values.goal)
        # auto moves the split point, and with it the work
        threads = 0 if values.split_point == AUTO else self._tuned.backbone_threads(settings)
        watch = self._split.observe
        self._stage = BackboneStage(self._model, settings, transport, self.warn, trace, watch, advisor, threads)
        self._split.attach(self._stage.configure)
        self.on_tear_down(self._split.detach)
        self._stage.when_ready_for_more(self._wake_executor)
        self.on_tear_down(self._stage.close)
        self.on_tear_down(self._stop)  # a signal may come between the start of threads and this node's being active
        self._limiter = RateLimiter(values.max_rate_hz)
        timer = self.every(REPORT_PERIOD_S, self._report)
        self.on_tear_down(lambda: self.destroy_timer(timer))

    def begin(self) -> None:
        self.stage.start()
        self._split.start()
        self._inputs = [
            ImageInput(self, topic, self.stage, self._limiter, self._enable) for topic in self.values.image_topics
        ]
        split_point = self._model.split_point(self.stage.settings.split_point)
        self.get_logger().info(
            f"{self.values.model} on {self._model.device}, cut at {split_point.name}: "
            f"{split_point.bytes_per_image:,} bytes an image cross"
        )

    def end(self) -> None:
        for images in self._inputs:
            images.close()
        self._inputs.clear()  # each holds the stage
        self._stop(LOST_DRAIN_S if self.loss else DRAIN_S)
        self._report()

    def _stop(self, drain_s: float = 0.0) -> None:
        self._split.stop()
        self.stage.stop(drain_s)

    def say_lost(self) -> None:
        if self._stage is not None:
            self._report()

    def change(self, values: BackboneParameters) -> None:
        self._split.configure(self._tuned.fill_in(values.settings), values.goal)
        self._limiter.max_rate_hz = values.max_rate_hz

    def _find_profile(self, batch_sizes: Sequence[int], may_measure: bool) -> Profile:
        return profile_model(
            self._model,
            batch_sizes,
            self._database(),
            may_measure=may_measure,
            say=lambda line: self.get_logger().info(f"measuring {self._model.entry.name}, {line}"),
        )

    def _load(self, execution_config: ExecutionConfig | None = None) -> SplitModel:
        return load_model(replace(self.values.model_spec, execution_config=execution_config or ExecutionConfig()))

    def _find_best_known(self) -> BestKnown:
        """The best that is known of the model here; where nothing is, it is tuned first, if that is wanted."""
        values, database = self.values, self._database()

        def find() -> BestKnown:
            return find_best_known(self._model, database, values.precision, values.batch_size)

        found = find()
        if found.network is not None or not values.tune_at_start:
            return found
        self.get_logger().info(f"tuning {values.model} for {values.tune_at_start:g} s")
        with TrialProcess(replace(values.model_spec, device=str(self._model.device))) as runner:
            Tuner(self._model, runner, database, precisions=(values.precision,)).tune(values.tune_at_start)
        return find()

    def _database(self) -> Database:
        return Database.named(self.values.tuning_database)

    def _forget(self) -> None:
        """Give back what only this node held: the network, and the GPU's memory with it."""
        self._stage = None
        del self._model
        empty_cache()

    def _check_topics(self, topics: Sequence[str]) -> None:
        try:
            names = {self.resolve_topic_name(topic) for topic in topics}
        except RuntimeError as error:  # rcl's
            raise ConfigurationError(f"image_topics cannot be {list(topics)} ({error}).") from error
        if not names or len(names) < len(topics):
            raise ConfigurationError(f"image_topics cannot be {list(topics)}; it takes at least one topic, each once.")

    def _report(self) -> None:
        lost = {"state": PipelineReport.LOST, "fault": self.loss} if self.loss else {}
        self._reports.publish(self._to_report(self.stage.report(time.monotonic()), **lost))

    def _wake_executor(self) -> None:
        if self.executor is not None:
            self.executor.wake()


def main() -> int:
    """Run this node alone."""
    return run([BackboneNode])


if __name__ == "__main__":
    sys.exit(main())
