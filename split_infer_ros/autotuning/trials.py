"""One configuration built and timed. It runs in a process of its own: see worker and trial_process."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from split_infer_ros.autotuning.spaces import CONVERSION, NETWORK, SEGMENTS, WORK
from split_infer_ros.engines.agreement import MAX_DIFFERENCE, difference
from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.measurements.steady import Measured, measure_steadily
from split_infer_ros.models.detections import Detections
from split_infer_ros.pipeline.frame import Origin
from split_infer_ros.pipeline.local import LocalPipeline
from split_infer_ros.pipeline.settings import DropPolicy, StageSettings
from split_infer_ros.runtime.num_threads import use_threads
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.runtime.timing import Lap, Stopwatch
from split_infer_ros.split.load import build_model, choose_device
from split_infer_ros.split.model import PRECISIONS, SplitModel
from split_infer_ros.split.model_spec import ModelSpec

MOST = {
    "fp32": MAX_DIFFERENCE
}  # that results differ from those as built; in other precisions the difference is only told
TF32_MOST = 2e-3  # where a GPU rounds factors of float32 to 10 bits, as torch has it do by default, as built too
WARM_UP = 3  # calls: convolutions are packed at the second
GROUP_S = 0.15  # of samples; more than one where the network is quick
MOST_SAMPLES = 20
SEGMENT_S = 0.01  # the same of a segment
LONG_S = 60.0
SEED = 0


class Trials:
    """Trials of one model on one device; what all have in common is made once.

    Args:
        spec: the model and its device. Each trial sets precision and execution config itself.

    Raises:
        ConfigurationError: there is no such model, or no such device.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._device = choose_device(spec.device)
        self._entry, self._as_built = build_model(spec)
        self._models: dict[bool, SplitModel] = {}
        self._expected: dict[tuple[int, int], tuple[Tensor, ...]] = {}  # by batch size and cores

    def run(self, stage: str, config: Mapping[str, Any], about: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Time a configuration.

        Args:
            stage: ``network``, ``pipeline``, or ``segments`` of a network.
            config: of that stage's space.
            about: ``batch_size`` of the network; ``form`` and ``precision`` (of the network's stage) of the pipeline.
            seconds: after which a doubtful measurement is not repeated.

        Returns:
            ``costs``, seconds a batch (network) or an image (pipeline); ``uncertain``; of the network ``difference``.
            Of segments a list of ``costs`` and ``uncertain`` each: ``work`` of the pieces between two split points, and
            ``conversion`` of what crosses in front of them into the layout of that form from the other one.

        Raises:
            ConfigurationError: the results are not those of the model as built.
        """
        end = time.monotonic() + seconds
        with ThreadPoolExecutor(1) as executor:  # its team of cores ends with it
            if stage == SEGMENTS:
                return executor.submit(self._segments, config, int(about["batch_size"]), end).result()
            if stage == NETWORK:
                return executor.submit(self._network, config, int(about["batch_size"]), end).result()
            return executor.submit(self._pipeline, config, about, end).result()

    def model(self, form: ExecutionConfig, precision: str) -> SplitModel:
        """The model in that form."""
        if form.folding not in self._models:
            module = copy.deepcopy(self._as_built)
            self._models[form.folding] = SplitModel(
                self._entry, module, torch.device("cpu"), execution_config=ExecutionConfig(folding=form.folding)
            )
        return self._models[form.folding].placed(self._device, PRECISIONS[precision], form)

    def images(self, batch_size: int) -> Tensor:
        """Float32 (N, 3, h, w) on the CPU, always the same."""
        random = torch.Generator().manual_seed(SEED)
        return torch.randn((batch_size, *self._entry.image_shape), generator=random)

    def _network(self, config: Mapping[str, Any], batch_size: int, end: float) -> dict[str, Any]:
        use_threads(config["threads"])
        model = self.model(ExecutionConfig.from_json(config), config["precision"])
        network, stream = model.backbone("output"), Stream(self._device)
        images = self.images(batch_size).contiguous(memory_format=torch.channels_last).to(self._device, model.dtype)

        def run() -> tuple[Tensor, ...]:
            found: tuple[Tensor, ...] = network(images)
            stream.fence().wait()
            return found

        with torch.inference_mode(), stream.work("trial"):
            for _ in range(WARM_UP):
                outputs = run()
            crossing = (each.cpu().float() if each.is_floating_point() else each.cpu() for each in outputs)
            outputs = model.head("output")(*crossing)
            differs = difference(outputs, self._as_built_gives(batch_size))
            most = MOST.get(config["precision"], math.inf)
            if self._device.type == "cuda" and torch.backends.cudnn.allow_tf32:
                most = max(most, TF32_MOST)
            if not (math.isfinite(differs) and differs <= most):
                allowed = f"{most:g} is allowed" if math.isfinite(most) else "what is finite is allowed"
                raise ConfigurationError(
                    f"Results differ from the model's as built by {differs:.2g} of the largest; {allowed}."
                )
            measured = measure_steadily(lambda: timed(run), lambda: time.monotonic() < end)
        return {**_told(measured), "difference": differs}

    def _segments(self, config: Mapping[str, Any], batch_size: int, end: float) -> dict[str, Any]:
        use_threads(config["threads"])
        model, stream = self.model(ExecutionConfig.from_json(config), config["precision"]), Stream(self._device)
        pieces, _ = model.segments()
        channels_last = config["convolutions"] != Convolutions.CONTIGUOUS.value
        into, other = torch.channels_last, torch.contiguous_format
        if not channels_last:
            into, other = other, into
        tensors: tuple[Tensor, ...] = (self.images(batch_size).to(self._device, model.dtype),)
        work, conversion = [], []
        watch = Stopwatch(self._device)

        def measured(run: Callable[[], object]) -> dict[str, Any]:
            for _ in range(WARM_UP - 1):
                run()
            return _told(measure_steadily(lambda: _samples(watch, run), lambda: time.monotonic() < end))

        with torch.inference_mode(), stream.work("trial"):
            for piece in pieces:
                given = _laid_out(tensors, into)
                elsewhere = _laid_out(tensors, other)
                conversion.append(measured(functools.partial(_laid_out, elsewhere, into)))
                work.append(measured(functools.partial(piece, *given)))
                tensors = piece(*given)
        return {"costs": [], WORK: work, CONVERSION: conversion}

    def _as_built_gives(self, batch_size: int) -> tuple[Tensor, ...]:
        """The outputs of the model as built, contiguous and eager, on as many cores as this thread has."""
        kind = batch_size, torch.get_num_threads()
        if kind not in self._expected:
            found = self._as_built(self.images(batch_size))
            self._expected[kind] = found if isinstance(found, tuple) else (found,)
        return self._expected[kind]

    def _pipeline(self, config: Mapping[str, Any], about: Mapping[str, Any], end: float) -> dict[str, Any]:
        use_threads(1)  # as whoever starts a pipeline
        form = ExecutionConfig.from_json(about["form"])
        settings = StageSettings(
            split_point=config["split_point"],
            batch_size=config["batch_size"],
            batch_timeout_s=LONG_S,
            drop_policy=DropPolicy.BLOCK,
            memory_policy=config["memory_policy"],
            cuda_graphs=config["cuda_graphs"],
        )
        model = self.model(form, about["precision"])
        threads = config["backbone_threads"], config["head_threads"]
        measured = measure_steadily(lambda: _periods(model, settings, threads), lambda: time.monotonic() < end)
        return _told(measured)


def timed(run: Callable[[], object], group_s: float | None = None) -> list[float]:
    """Seconds of each of some calls: one, or as many as there is time for."""
    group_s = GROUP_S if group_s is None else group_s
    samples: list[float] = []
    while not samples or (sum(samples) < group_s and len(samples) < MOST_SAMPLES):
        begin = time.perf_counter()
        run()
        samples.append(time.perf_counter() - begin)
    return samples


def _samples(watch: Stopwatch, run: Callable[[], object]) -> list[float]:
    """Seconds of each of some calls in a row, which take the device about as long as a segment is timed for."""
    count = max(1, min(MOST_SAMPLES, round(SEGMENT_S / max(watch.time(run), 1e-9))))

    def repeat(lap: Lap) -> None:
        for _ in range(count):
            run()
            lap()

    return watch.laps(repeat)[1]


def _periods(model: SplitModel, settings: StageSettings, threads: tuple[int, int]) -> list[float]:
    """Seconds an image of a saturated pipeline, one sample a batch; the batches at first are left out."""
    size, batches = settings.batch_size, 2 * WARM_UP + 2
    ends: list[float] = []

    def deliver(origin: Origin, detections: Detections) -> None:
        if origin.header % size == size - 1:
            ends.append(time.monotonic())

    with LocalPipeline(model, settings, deliver, threads=threads) as pipeline:
        pipeline.feed(itertools.repeat(Pixels.blank(), size * batches))
        pipeline.finish()
    return [(later - sooner) / size for sooner, later in itertools.pairwise(ends[WARM_UP - 1 :])]


def _laid_out(tensors: tuple[Tensor, ...], layout: torch.memory_format) -> tuple[Tensor, ...]:
    """Images and maps in that layout; what is no image has but one."""
    return tuple(tensor.contiguous(memory_format=layout) if tensor.dim() == 4 else tensor for tensor in tensors)


def _told(measured: Measured) -> dict[str, Any]:
    return {"costs": list(measured.costs), "uncertain": measured.uncertain}
