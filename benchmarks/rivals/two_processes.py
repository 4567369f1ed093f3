"""A split pipeline with backbone and head in two processes, like the workers of paper 000 (§4.2, 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.rivals.head_process import Deliver, HeadProcess, Weights, Work
from split_infer_ros.errors import Notice
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Limits
from split_infer_ros.runtime.num_threads import default_head_threads
from split_infer_ros.server.backbone_stage import BackboneStage
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.stage_feeder import StageFeeder
from split_infer_ros.split.model import SplitModel


class TwoProcessPipeline:
    """Runs the backbone in this process and the head in another process. Its methods are those of ``LocalPipeline``.

    Args:
        model: the model. Its backbone runs in this process.
        settings: the settings of the backbone. The drop policy must be ``block``.
        deliver: called with each frame's origin and detections.
        limits: the limits that decide which detections are kept.
        weights: the model's weights, for the other process.
        watch: called with each batch whose results have come.

    Attributes:
        head: the other process.
        backbone: the stage of this process.
    """

    def __init__(
        self,
        model: SplitModel,
        settings: StageSettings,
        deliver: Deliver,
        *,
        limits: Limits,
        weights: Weights,
        watch: Callable[[Batch], None],
    ) -> None:
        self._feeder = StageFeeder()
        work = Work(
            name=model.entry.name,
            limits=limits,
            num_threads=default_head_threads(model.device),
            split_point=settings.split_point,
            batch_size=settings.batch_size,
        )
        self.head = HeadProcess(work, weights, deliver, self._hear)
        self.backbone = BackboneStage(model, settings, self.head, self._hear, watch=watch)

    def feed(self, pictures: Iterable[Pixels]) -> None:
        """Gives pictures to the backbone, as fast as it accepts them."""
        self._feeder.feed(self.backbone, pictures)

    def finish(self) -> None:
        """Waits until each picture that was fed is published or dropped."""
        self._feeder.finish(self.backbone)

    def close(self) -> None:
        """Frees the slots and ends the head process."""
        self.backbone.close()
        self.head.close()

    def _hear(self, error: Exception) -> None:
        if not isinstance(error, Notice):
            self._feeder.fail(error)
