"""Both stages in this process without ROS: pictures in, detections out, and a handle in between."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from types import TracebackType

from split_infer_ros.errors import Notice, SplitInferError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.pipeline.backbone_stage import BackboneStage
from split_infer_ros.pipeline.frame import Handle, Origin
from split_infer_ros.pipeline.head_stage import HeadStage
from split_infer_ros.pipeline.in_flight import InFlightBatch
from split_infer_ros.pipeline.local_transport import LocalTransport
from split_infer_ros.pipeline.settings import StageSettings, WeightsSettings
from split_infer_ros.runtime.num_threads import default_head_threads
from split_infer_ros.split.model import SplitModel

_LOG = logging.getLogger(__name__)

STUCK_S = 60.0  # a batch that takes longer is not waited for


class LocalPipeline:
    """A running pipeline; a context that starts and ends it.

    Args:
        model: both of its partitions.
        settings: with drop_policy ``block`` whoever feeds it is made to wait.
        deliver: called with each frame's origin and detections, on the head's thread.
        limits: what post-processing keeps.
        threads: cores of the backbone's (0: all) and of the head's operations; unless given, as nodes have them.
        head: where the head's weights are; unless given, in memory. The backbone's are where the settings have them.
        watch: called with each batch whose results are out, its timeline complete; must not wait.

    Raises:
        ConfigurationError: there is no such cut or memory, or weights cannot be read.

    Attributes:
        notices: what runs otherwise than the settings ask for, sentences.
    """

    def __init__(
        self,
        model: SplitModel,
        settings: StageSettings,
        deliver: Callable[[Origin, Detections], None],
        limits: Limits | None = None,
        threads: tuple[int, int] | None = None,
        head: WeightsSettings | None = None,
        watch: Callable[[InFlightBatch], None] | None = None,
    ) -> None:
        self.notices: list[str] = []
        self._errors: list[Exception] = []
        self._fed = 0
        backbone_threads, head_threads = threads or (0, default_head_threads(model.device))
        self._deliver_to = deliver
        self.head = HeadStage.open(
            model,
            limits or Limits(),
            deliver=self._deliver,
            on_error=self._hear,
            num_threads=head_threads,
            weights=head,
            batch_size=settings.batch_size,
        )
        # The head is a thread of this object. While it is slow its batches wait, and that does not mean it is gone.
        transport = LocalTransport(self.head.submit, lease_s=STUCK_S)
        self.backbone = BackboneStage(model, settings, transport, self._hear, watch=watch, threads=backbone_threads)

    def __enter__(self) -> LocalPipeline:
        self.head.start()
        self.backbone.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.backbone.stop(0.0 if error else STUCK_S)
        self.head.stop()
        self.backbone.close()

    def feed(self, pictures: Iterable[Pixels]) -> None:
        """Send pictures as fast as they are taken; their origins' headers count from 0.

        Raises:
            SplitInferError: the pipeline takes no more.
            Exception: whatever befell a batch.
        """
        for picture in pictures:
            if not self.backbone.wait_for_room(STUCK_S):
                raise SplitInferError(f"The pipeline took no frame for {STUCK_S:g} s.")
            self._check()
            origin = Origin(self._fed, "", picture.height, picture.width)
            self.backbone.submit(picture, origin, time.monotonic())
            self._fed += 1

    def finish(self) -> None:
        """Wait until all that was fed is done.

        Raises:
            SplitInferError: it does not come to an end.
            Exception: whatever befell a batch.
        """
        end = time.monotonic() + STUCK_S
        while self.backbone.ledger.counts().in_flight:
            self._check()
            if time.monotonic() > end:
                raise SplitInferError(f"The pipeline did not finish within {STUCK_S:g} s.")
            time.sleep(1e-3)
        self._check()

    def _deliver(self, handle: Handle, index: int, detections: Detections) -> None:
        self._deliver_to(handle.origins[index], detections)

    def _hear(self, error: Exception) -> None:
        if isinstance(error, Notice):
            _LOG.warning("%s", error)
            self.notices.append(str(error))
        else:
            self._errors.append(error)

    def _check(self) -> None:
        if self._errors:
            raise self._errors[0]
