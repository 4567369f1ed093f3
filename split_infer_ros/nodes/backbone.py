"""Node ``backbone``: receives images, publishes handles to features."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from split_infer_ros.autotuning.opening import Measuring, open_model
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database
from split_infer_ros.nodes.backbone_pipeline import BackbonePipeline
from split_infer_ros.nodes.enable_service import EnableService
from split_infer_ros.nodes.image_input import ImageInput
from split_infer_ros.nodes.managed import ManagedNode, configured
from split_infer_ros.nodes.parameters.backbone import BackboneParameters
from split_infer_ros.nodes.process import run
from split_infer_ros.runtime.cache_pruning import limit_cache
from split_infer_ros.runtime.captures import empty_cache
from split_infer_ros.server.backbone_stage import BackboneStage
from split_infer_ros.split.model import SplitModel

REPORT_PERIOD_S = 0.5


class BackboneNode(ManagedNode[BackboneParameters]):
    """Subscribes to ``image``; publishes handles on ``features`` and reports on ``report``."""

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__("backbone", BackboneParameters, **node_arguments)
        self._model: SplitModel | None = None
        self._pipeline: BackbonePipeline | None = None
        self._inputs: list[ImageInput] = []
        self._enable = EnableService(self)

    @property
    def model(self) -> SplitModel:
        """The model, while the node is configured.

        Raises:
            ConfigurationError: the node is not configured.
        """
        return configured(self._model, "The backbone")

    @property
    def pipeline(self) -> BackbonePipeline:
        """The stage and the other parts that the node runs, while the node is configured.

        Raises:
            ConfigurationError: the node is not configured.
        """
        return configured(self._pipeline, "The backbone")

    @property
    def stage(self) -> BackboneStage:
        """The backbone's stage, while the node is configured.

        Raises:
            ConfigurationError: the node is not configured.
        """
        return self.pipeline.stage

    def configure(self) -> None:
        values = self.values
        limit_cache(values.cache_bytes)
        self._check_topics(values.image_topics)
        self.add_cleanup(self._unload)
        log = self.get_logger()
        cores = values.cores
        with cores.backbone.bound():  # what is known of the model is for as many cores
            opened = open_model(
                values.model_spec,
                values.stage,
                Database.named(values.tuning_database),
                engine=values.engine,
                precision=values.precision,
                batch_size=values.stage.batch_size,
                measuring=Measuring(log.info, values.improve, values.min_agreement, cores),
            )
        self._model = opened.model
        for note in opened.notes:
            log.warning(note)
        log.info(f"{values.model.name} runs on {_engine_of(opened.model)}; {opened.best_known}")
        self._pipeline = BackbonePipeline.open(self, opened)
        self.call_every(REPORT_PERIOD_S, self._report)

    def activate(self) -> None:
        pipeline, model = self.pipeline, self.model
        pipeline.start()
        for topic in self.values.image_topics:  # one by one, so that ``deactivate`` closes them if the next one fails
            self._inputs.append(
                ImageInput(
                    self,
                    topic,
                    intake=pipeline.stage.intake,
                    limiter=pipeline.limiter,
                    enable=self._enable,
                    is_listened_to=pipeline.reaches_head,
                )
            )
        split_point = model.split_point(pipeline.stage.settings.split_point)
        self.get_logger().info(
            f"{self.values.model.name} on {model.device} by {_engine_of(model)}, split at {split_point.name}: "
            f"{split_point.bytes_per_image:,} bytes of features an image"
        )

    def deactivate(self) -> None:
        for images in self._inputs:
            images.close()
        self._inputs.clear()  # each input refers to the stage
        self.pipeline.stop(self.drain_s)
        self._report()

    def apply(self, values: BackboneParameters) -> None:
        self.pipeline.apply(values)

    def report_device_loss(self) -> None:
        self._report()

    def _report(self) -> None:
        """Publishes a report of the pipeline, if the node is configured.

        An executor may keep the timer's callback for a while. The callback therefore belongs to the node: a method of
        the pipeline would keep the pipeline's memory after the clean-up.
        """
        if self._pipeline is not None:
            self._pipeline.report(" ".join(images.mismatch for images in self._inputs if images.mismatch))

    def _unload(self) -> None:
        """Drops the model and what refers to it, and frees the GPU's cached memory."""
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
    """Runs a process with this node alone. Returns the exit code."""
    return run([BackboneNode])


if __name__ == "__main__":
    sys.exit(main())
