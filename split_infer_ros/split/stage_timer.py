"""Times the stages of every split point of a model, each alone.

The model runs in segments between neighbouring split points, once as the backbone runs it and once as the head does.
The segments before a split point add up to its backbone, and those behind it to its head. To time the partitions of
each split point separately, the model would have to run once for every split point.

Two times are longer here than in a pipeline. Images are normalised before the first segment. In a pipeline on OpenVINO
in fp32, the engine normalises them instead, at every split point but ``input``. All micro-batches run through a segment
before the next segment begins. In a pipeline, each micro-batch runs through the whole partition, which is faster.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence

from split_infer_ros.buffers.host_arrays import Values, as_tensor, to_host
from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.measurements.steady import repeat_until_steady
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.preprocessing.preprocessor import make_preprocessor
from split_infer_ros.runtime.cores import ANY_CORES, StageCores
from split_infer_ros.runtime.device import CPU
from split_infer_ros.runtime.inference import inference_mode
from split_infer_ros.runtime.num_threads import default_head_threads, run_with_threads, use_one_thread
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.runtime.timing import Lap, Stopwatch
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.split.profile_samples import PointSamples, ProfilePart

TORCHS_SHORTAGE = "OutOfMemoryError"  # a RuntimeError; its class is known only where torch is imported


class StageTimer:
    """Times the stages of one model on the calling thread.

    Args:
        model: the model, placed on its device.
        image: an image like those that the cameras send.
        limits: decide which detections post-processing keeps.
        rounds: the number of samples of each stage. Passes through the model are repeated until that many agree.
        cores: the cores of each stage.
    """

    def __init__(
        self, model: SplitModel, *, image: Pixels, limits: Limits, rounds: int, cores: StageCores = ANY_CORES
    ) -> None:
        self._model = model
        self._cores = cores
        self._image = image
        self._limits = limits
        self._calls = 1 + rounds  # the first one is not counted
        self._num_agreeing = max(2, rounds)
        self._place = Place(Policy.DEVICE, model.device)  # legal everywhere; plain memory on a CPU

    def measure(self, batch_size: int) -> list[PointSamples]:
        """Returns the samples of every split point, in order.

        Raises:
            ConfigurationError: the memory is too small for the batch size.
        """
        try:
            with self._cores.backbone.bound():
                return self._measure(batch_size)
        except RuntimeError as error:
            if type(error).__name__ != TORCHS_SHORTAGE:
                raise
            raise ConfigurationError(
                f"{self._model.entry.name} cannot be measured at batch size {batch_size}: "
                f"{self._model.device} does not have enough memory "
                f"({str(error).partition('.')[0]}); leave out the largest batch sizes."
            ) from error

    def _measure(self, batch_size: int) -> list[PointSamples]:
        model = self._model
        stream, watch = Stream(model.device), Stopwatch(model.device)
        preprocessor = make_preprocessor(
            model.entry.preprocess, model.batch_form, batch_size=batch_size, place=self._place
        )
        backbone_segments, head_segments = model.segments()

        def preprocess() -> Values:
            loaded = preprocessor.load([self._image] * batch_size)
            loaded.ready.wait()
            return loaded.images

        with inference_mode(), stream.work("profile"):
            use_one_thread()  # as in the pipeline
            preprocess_s = [_time_on_host(preprocess, stream) for _ in range(self._calls)]
            images = preprocess()
            model.execution_config.engine.use_threads(model.execution_config.threads)
            _, backbones_s = self._time_segments(backbone_segments, (images,), watch)
            hand_overs_s = self._time_hand_overs(backbone_segments, images, batch_size=batch_size, watch=watch)
        with self._cores.of_head_threads.bound():
            num_threads = default_head_threads(model.device, cores=self._cores.head)
            heads_s, decode_s = run_with_threads(num_threads, lambda: self._time_heads(head_segments, to_host(images)))
        return [
            PointSamples(
                split_point.name,
                batch_size,
                {
                    ProfilePart.PREPROCESS: tuple(preprocess_s[1:]),
                    ProfilePart.BACKBONE: tuple(sum(seconds[:index]) for seconds in backbones_s),
                    ProfilePart.HAND_OVER: hand_overs_s[index],
                    ProfilePart.HEAD: tuple(sum(seconds[index:]) for seconds in heads_s),
                    ProfilePart.DECODE: tuple(decode_s[1:]),
                },
            )
            for index, split_point in enumerate(model.split_points)
        ]

    def _time_heads(self, segments: Sequence[Partition], images: Values) -> tuple[list[list[float]], list[float]]:
        """Returns the seconds of each segment as a head runs it, in several passes, and those of decoding."""
        model, watch = self._model, Stopwatch(CPU)
        with inference_mode():
            inputs = (images if model.takes_arrays else as_tensor(images),)
            last_features, heads_s = self._time_segments(segments, inputs, watch)
            outputs = model.head(model.split_points[-1].name)(*last_features)
            return heads_s, [watch.time(lambda: self._decode(outputs)) for _ in range(self._calls)]

    def _time_segments(
        self, segments: Sequence[Partition], inputs: tuple[Values, ...], watch: Stopwatch
    ) -> tuple[tuple[Values, ...], list[list[float]]]:
        """Runs segments one after the other, in passes that are repeated until some of them agree.

        The first passes take long, because the heap gets its pages then and convolutions are packed.

        Returns:
            The results of the last segment, and the seconds of each segment in each of the passes that agree.
        """

        def run(lap: Lap) -> tuple[Values, ...]:
            values = inputs
            for segment in segments:
                values = segment(*values)
                lap()
            return values

        results, _ = watch.laps(run)
        passes_s, _ = repeat_until_steady(lambda: watch.laps(run)[1], math.fsum, num_agreeing=self._num_agreeing)
        return results, passes_s

    def _time_hand_overs(
        self, segments: Sequence[Partition], images: Values, *, batch_size: int, watch: Stopwatch
    ) -> list[tuple[float, ...]]:
        """Returns the seconds of copying the features into a slot, for each split point.

        For an engine that writes its features into the slot itself, this copy is left out.
        """
        seconds = []
        features: tuple[Values, ...] = (images,)
        is_written = False
        for split_point, segment in itertools.zip_longest(self._model.split_points, segments):
            slots = SlotMemory.allocate(Layout(split_point.tensors, batch_size), 1, self._place)

            def copy(
                slots: SlotMemory = slots, tensors: tuple[Values, ...] = features, is_written: bool = is_written
            ) -> None:
                if not is_written:
                    slots.write(0, tensors)
                if slots.needs_copy:
                    slots.fetch(0, batch_size)

            seconds.append(tuple(watch.time(copy) for _ in range(self._calls))[1:])
            if segment is not None:
                features = segment(*features)
                is_written = isinstance(segment, EnginePart) and segment.can_run_into
        return seconds

    def _decode(self, outputs: tuple[Values, ...]) -> list[Detections]:
        entry, image = self._model.entry, self._image
        found = entry.detections_of(outputs, self._limits)
        return [entry.in_source(each, image.height, image.width) for each in found]


def _time_on_host(work: Callable[[], object], stream: Stream) -> float:
    """Returns the seconds from the start of work on the host until the device has done its part."""
    start = time.perf_counter()
    work()
    stream.fence().wait()
    return time.perf_counter() - start
