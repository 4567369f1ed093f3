"""A pipeline in one process without ROS: images in, detections out."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from split_infer_ros.errors import ConfigurationError, Notice, SplitInferError
from split_infer_ros.images.encodings import BGR, RGB, Pixels
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.runtime.cores import ANY_CORE, Cores
from split_infer_ros.runtime.num_threads import default_head_threads
from split_infer_ros.server.backbone_stage import BackboneStage
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.frame import Handle, Origin
from split_infer_ros.server.head_stage import HeadStage
from split_infer_ros.server.local_transport import LocalTransport
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.server.stage_feeder import STUCK_S, StageFeeder
from split_infer_ros.setting import check_settings
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.settings import WeightsSettings

_LOG = logging.getLogger(__name__)

IN_ANOTHER_RUN = "The pipeline is in another run; finish or close that first."
RUN_ENCODINGS = {"rgb8": RGB, "bgr8": BGR}


@dataclass(frozen=True, slots=True)
class ImageResult:
    """What a pipeline found in one image.

    Attributes:
        index: the image's number in the run, from 0.
        detections: the objects found in it, in pixels of the image.
    """

    index: int
    detections: Detections


@dataclass(frozen=True, slots=True)
class _LocalRun:
    """The results of a run that are not yet yielded. Frames before ``first`` belong to an earlier, abandoned run."""

    first: int
    results: deque[ImageResult] = field(default_factory=deque)


class LocalPipeline:
    """Backbone and head in one process without ROS. As a context manager, it starts and stops both stages.

    ``run`` turns images into an iterator of results. Callers that take results in ``deliver`` use ``feed`` and
    ``finish`` instead.

    Args:
        model: the model that runs.
        settings: how frames are batched and where the model is split. The default blocks the sender when the
            pipeline is full, so that no image is dropped.
        deliver: called with each frame's origin and detections, on the head's thread.
        limits: the limits of post-processing: which detections are kept.
        head_threads: threads for the head's operations; 0: the nodes' default.
        head_cores: the cores on which the head's threads run. ``settings`` say where the backbone's run.
        head_weights: where the head's weights are; in memory if None. ``settings`` say where the backbone's are.
        watch: called with each finished batch, once all its times are known. It must not wait.

    Raises:
        ConfigurationError: a limit is not accepted, the split point does not exist, memory is short, or weights cannot
            be read.

    Attributes:
        notices: sentences that say where the pipeline differs from the settings.
        head, backbone: the two stages.
    """

    def __init__(
        self,
        model: SplitModel,
        settings: StageSettings | None = None,
        deliver: Callable[[Origin, Detections], None] | None = None,
        *,
        limits: Limits | None = None,
        head_threads: int = 0,
        head_cores: Cores = ANY_CORE,
        head_weights: WeightsSettings | None = None,
        watch: Callable[[Batch], None] | None = None,
    ) -> None:
        self.notices: list[str] = []
        self._feeder = StageFeeder()
        self._settings = settings or StageSettings(drop_policy=DropPolicy.BLOCK)
        self._run: _LocalRun | None = None
        self._deliver_to = deliver
        limits = limits or Limits()
        check_settings(limits)
        self.head = HeadStage.open(
            model,
            limits,
            deliver=self._deliver,
            on_error=self._hear,
            num_threads=head_threads or default_head_threads(model.device, cores=head_cores),
            cores=head_cores,
            weights=head_weights,
            batch_size=self._settings.batch_size,
            split_point=self._settings.split_point,
        )
        # The head is a thread of this object. If its batches wait for long, the head is slow, not gone.
        transport = LocalTransport(self.head, lease_s=STUCK_S)
        self.backbone = BackboneStage(model, self._settings, transport, self._hear, watch=watch)

    @property
    def errors(self) -> list[Exception]:
        """Errors that cost frames, the first one first."""
        return self._feeder.errors

    def __enter__(self) -> LocalPipeline:
        self.backbone.start()  # first, because it may refuse, and no head may then run on
        self.head.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.backbone.stop(0.0 if error else STUCK_S)
        self.head.stop()
        self.backbone.close()

    def run(self, images: Iterable[NDArray[np.uint8]], encoding: str = "rgb8") -> Iterator[ImageResult]:
        """Detects objects in images and yields one result for each image, in order.

        Images are taken one by one while earlier ones are computed. ``images`` may therefore be endless: the pipeline
        holds only the images of its slots and of its next batch. A result is yielded when a later image is taken, or
        when the images end. An image must keep its pixels until its result is yielded.

        Args:
            images: arrays of uint8, (height, width, 3); their sizes may differ.
            encoding: the order of colours: ``rgb8``, or ``bgr8`` as OpenCV reads images.

        Raises:
            ConfigurationError: the settings allow frames to be dropped, or the encoding is unknown. It is also raised
                if an image is not an array as above, or the pipeline is in another run.
            SplitInferError: the pipeline took no frame for 60 s, or an image has no result.
            Exception: a batch failed; this is its error.
        """
        if self._settings.drop_policy is not DropPolicy.BLOCK:
            raise ConfigurationError(
                f"A pipeline with drop_policy '{self._settings.drop_policy.value}' cannot run images in order; "
                f"it takes '{DropPolicy.BLOCK.value}'."
            )
        if encoding not in RUN_ENCODINGS:
            raise ConfigurationError(f"Encoding '{encoding}' is unknown; it takes one of: {', '.join(RUN_ENCODINGS)}.")
        if self._run is not None:
            raise ConfigurationError(IN_ANOTHER_RUN)
        return self._results_of(images, encoding)

    def _results_of(self, images: Iterable[NDArray[np.uint8]], encoding: str) -> Iterator[ImageResult]:
        if self._run is not None:  # another run began after ``run`` returned this iterator
            raise ConfigurationError(IN_ANOTHER_RUN)
        first, num_yielded = self._feeder.num_fed, 0
        self._run = run = _LocalRun(first)
        try:
            for image in images:
                self.feed([_pixels_of(image, self._feeder.num_fed - first, encoding)])
                while run.results:
                    num_yielded += 1
                    yield run.results.popleft()
            self.finish()
            num_yielded += len(run.results)
            yield from run.results
        finally:
            self._run = None
        if num_yielded != self._feeder.num_fed - first:
            raise SplitInferError(f"{self._feeder.num_fed - first - num_yielded} images have no result.")

    def feed(self, pictures: Iterable[Pixels]) -> None:
        """Sends images to the backbone as fast as it accepts them.

        The header of each image is its number. The numbers begin at 0 and continue over all calls.

        Raises:
            SplitInferError: the pipeline took no frame for 60 s.
            Exception: a batch failed; this is its error.
        """
        self._feeder.feed(self.backbone, pictures)

    def finish(self) -> None:
        """Waits until each image that ``feed`` has sent is published or dropped.

        Raises:
            SplitInferError: this takes longer than 60 s.
            Exception: a batch failed; this is its error.
        """
        self._feeder.finish(self.backbone)

    def _deliver(self, handle: Handle, index: int, detections: Detections) -> None:
        origin = handle.origins[index]
        if self._deliver_to is not None:
            self._deliver_to(origin, detections)
        run = self._run
        if run is not None and origin.header >= run.first:
            run.results.append(ImageResult(origin.header - run.first, detections))

    def _hear(self, error: Exception) -> None:
        if isinstance(error, Notice):
            _LOG.warning("%s", error)
            self.notices.append(str(error))
        else:
            self._feeder.fail(error)


def _pixels_of(image: NDArray[np.uint8], index: int, encoding: str) -> Pixels:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise ConfigurationError(
            f"Image {index} is {image.dtype} {image.shape}; it must be a NumPy array of uint8, (height, width, 3), "
            "not empty."
        )
    return Pixels(np.ascontiguousarray(image), RUN_ENCODINGS[encoding])
