"""Node ``backbone``: receives images, publishes handles to features."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from split_infer_ros.autotuning.best_known import BestKnown, find_best_known
from split_infer_ros.autotuning.engine_choice import compare_engines_once, open_engines
from split_infer_ros.autotuning.trial_process import TrialProcess
from split_infer_ros.autotuning.tune import Tuner
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision, parse_precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database
from split_infer_ros.nodes.backbone_pipeline import BackbonePipeline
from split_infer_ros.nodes.enable_service import EnableService
from split_infer_ros.nodes.image_input import ImageInput
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.parameters.backbone import BackboneParameters
from split_infer_ros.nodes.process import run
from split_infer_ros.runtime.captures import empty_cache
from split_infer_ros.server.backbone_stage import BackboneStage
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_engines import choose_precision, untuned_engine
from split_infer_ros.weight_streaming.hollow_loading import load_streamable

REPORT_PERIOD_S = 0.5
DRAIN_S = 2.0  # how long heads may take to finish when the node is deactivated
LOST_DRAIN_S = 0.5  # the same after the GPU was lost, when the process is about to end


class BackboneNode(ManagedNode[BackboneParameters]):
    """Subscribes to ``image``; publishes handles on ``features``, and ``report``."""

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__("backbone", BackboneParameters, **node_arguments)
        self._model: SplitModel | None = None
        self._pipeline: BackbonePipeline | None = None
        self._inputs: list[ImageInput] = []
        self._enable = EnableService(self)

    @property
    def model(self) -> SplitModel:
        """The model, while configured.

        Raises:
            ConfigurationError: the node is not configured.
        """
        if self._model is None:
            raise ConfigurationError("The backbone is not configured yet.")
        return self._model

    @property
    def pipeline(self) -> BackbonePipeline:
        """What the node runs, while configured.

        Raises:
            ConfigurationError: the node is not configured.
        """
        if self._pipeline is None:
            raise ConfigurationError("The backbone is not configured yet.")
        return self._pipeline

    @property
    def stage(self) -> BackboneStage:
        """The stage, while configured."""
        return self.pipeline.stage

    def configure(self) -> None:
        values = self.values
        self._check_topics(values.image_topics)
        self._model = self._load()
        self.add_cleanup(self._unload)
        precision, reason = choose_precision(self._model, parse_precision(values.precision), values.engine)
        if reason:
            self.get_logger().warning(reason)
        best_known = self._find_or_tune(precision)
        untuned = untuned_engine(self._model, precision)
        self._model = self._load(best_known.execution_config.with_engine(values.engine, untuned))
        self.get_logger().info(f"{values.model} runs on {_engine_of(self._model)}; {best_known}")
        if self._model.note:
            self.get_logger().warning(self._model.note)
        self._pipeline = BackbonePipeline.open(self, self._model, best_known)
        timer = self.create_steady_timer(REPORT_PERIOD_S, self._report)
        self.add_cleanup(lambda: self.destroy_timer(timer))

    def activate(self) -> None:
        pipeline, model = self.pipeline, self.model
        pipeline.start()
        self._inputs = [
            ImageInput(self, topic, sink=pipeline.stage, limiter=pipeline.limiter, enable=self._enable)
            for topic in self.values.image_topics
        ]
        split_point = model.split_point(pipeline.stage.settings.split_point)
        self.get_logger().info(
            f"{self.values.model} on {model.device} by {_engine_of(model)}, split at {split_point.name}: "
            f"{split_point.bytes_per_image:,} bytes of features an image"
        )

    def deactivate(self) -> None:
        for images in self._inputs:
            images.close()
        self._inputs.clear()  # each of them refers to the stage
        self.pipeline.stop(LOST_DRAIN_S if self.device_loss else DRAIN_S)
        self._report()

    def apply(self, values: BackboneParameters) -> None:
        self.pipeline.apply(values)

    def report_device_loss(self) -> None:
        self._report()

    def _report(self) -> None:
        """Publishes a report.

        An executor may keep the timer's callback for a while. The callback therefore belongs to the node: a method of
        the pipeline would keep the pipeline's memory after the clean-up.
        """
        if self._pipeline is not None:
            self._pipeline.report(" ".join(images.mismatch for images in self._inputs if images.mismatch))

    def _load(self, execution_config: ExecutionConfig | None = None) -> SplitModel:
        spec = replace(self.values.model_spec, execution_config=execution_config or ExecutionConfig())
        return load_streamable(spec, self.values.weights_settings)

    def _find_or_tune(self, precision: Precision) -> BestKnown:
        """Returns the best known configuration of the model on this machine in a precision.

        If there is none, the model is tuned first if the parameter ``tune_at_start`` is set. Else, with engine
        ``auto``, the engines are compared, unless the model was tuned or they were compared at this batch size.
        """
        values, database, log = self.values, Database.named(self.values.tuning_database), self.get_logger()
        spec = replace(values.model_spec, device=str(self.model.device))
        engines = open_engines(values.engine, values.weights_settings.weights_residency)

        def find() -> BestKnown:
            return find_best_known(self.model, database, precision, values.batch_size, engines)

        best_known = find()
        if best_known.network is None and values.tune_at_start:
            log.info(f"tuning {values.model} for {values.tune_at_start:g} s")
            with TrialProcess(spec) as runner:
                tuner = Tuner(self.model, runner, database, precisions=(precision,), engines=engines)
                tuner.tune(values.tune_at_start)
        elif best_known.pipeline is None and not engines:
            compare_engines_once(
                self.model,
                spec,
                database,
                precision=precision,
                batch_size=values.batch_size or 1,
                say=log.info,
            )
        return find()

    def _unload(self) -> None:
        """Lets go of the model and of what refers to it, and gives the GPU's memory back."""
        self._model = self._pipeline = None
        empty_cache()

    def _check_topics(self, topics: Sequence[str]) -> None:
        try:
            names = {self.resolve_topic_name(topic) for topic in topics}
        except RuntimeError as error:  # from rcl
            raise ConfigurationError(f"image_topics cannot be {list(topics)} ({error}).") from error
        if not names or len(names) < len(topics):
            raise ConfigurationError(f"image_topics cannot be {list(topics)}; it takes at least one topic, each once.")


def _engine_of(model: SplitModel) -> str:
    return f"{model.execution_config.engine_text} in {model.precision.value}"


def main() -> int:
    """Runs this node alone."""
    return run([BackboneNode])


if __name__ == "__main__":
    sys.exit(main())
