"""Builds and times one configuration at a time. It runs in a process of its own; see worker and trial_process."""

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
from torch import Tensor, nn

from split_infer_ros.autotuning.spaces import CONVERSION, NETWORK, SEGMENTS, WORK
from split_infer_ros.engines.agreement import MAX_DIFFERENCE, allowed_difference, difference
from split_infer_ros.engines.engine import Engine
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
from split_infer_ros.split.load import build_model, choose_device, make_model
from split_infer_ros.split.model import PRECISIONS, SplitModel
from split_infer_ros.split.model_spec import ModelSpec

MAX_DIFFERENCES = {"fp32": MAX_DIFFERENCE}  # from the model as built; in other precisions it is only recorded
MAX_TF32_DIFFERENCE = 2e-3  # on a GPU that rounds factors of float32 to 10 bits, torch's default
WARM_UP = 3  # calls; convolutions are packed at the second one
GROUP_S = 0.15  # a group of samples takes at least this long
MAX_SAMPLES = 20  # of a group
SEGMENT_S = 0.01  # a sample of segments takes about this long
BATCH_TIMEOUT_S = 60.0
SEED = 0


class Trials:
    """Runs trials of one model on one device. The model is built once for all of them.

    Args:
        spec: the model and its device. Each trial sets precision and execution config itself.

    Raises:
        ConfigurationError: the model or the device does not exist.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._device = choose_device(spec.device)
        self._entry, self._as_built = build_model(spec)
        self._models: dict[bool, SplitModel] = {}
        self._expected: dict[tuple[int, int], tuple[Tensor, ...]] = {}  # by batch size and threads

    def run(self, stage: str, config: Mapping[str, Any], about: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Times a configuration.

        Args:
            stage: ``network``, ``pipeline``, or ``segments`` of a network.
            config: a configuration of that stage's space.
            about: for the network and its segments ``batch_size``. For the pipeline the network's configuration,
                ``form``, and its ``precision``.
            seconds: an uncertain measurement is not repeated after this time.

        Returns:
            For network and pipeline, ``costs`` in seconds a batch or an image, and ``uncertain``. The network also has
            the ``difference`` of its results from the model as built.
            For segments, two lists with ``costs`` and ``uncertain`` of each piece between two split points. ``work``
            is the piece itself. ``conversion`` brings its inputs from the other layout into its own.

        Raises:
            ConfigurationError: the results differ too much from the model as built.
        """
        end = time.monotonic() + seconds
        with ThreadPoolExecutor(1) as executor:  # torch's helper threads end with it
            if stage == SEGMENTS:
                return executor.submit(self._segments, config, int(about["batch_size"]), end).result()
            if stage == NETWORK:
                return executor.submit(self._network, config, int(about["batch_size"]), end).result()
            return executor.submit(self._pipeline, config, about, end).result()

    def model(self, execution_config: ExecutionConfig, precision: str) -> SplitModel:
        """Returns the model with that execution config. Models with equal folding share their weights."""
        source = self._source(execution_config.folding)
        return source.placed(self._device, PRECISIONS[precision], execution_config)

    def images(self, batch_size: int) -> Tensor:
        """Returns noise, float32 (N, 3, h, w), on the CPU. Equal batch sizes give equal images."""
        random = torch.Generator().manual_seed(SEED)
        return torch.randn((batch_size, *self._entry.image_shape), generator=random)

    def _source(self, folding: bool) -> SplitModel:
        """Returns the model on the CPU in float32. It is prepared once."""
        if folding not in self._models:
            built = copy.deepcopy(self._as_built) if isinstance(self._as_built, nn.Module) else self._as_built
            self._models[folding] = make_model(self._entry, built, ExecutionConfig(folding=folding))
        return self._models[folding]

    def _network(self, config: Mapping[str, Any], batch_size: int, end: float) -> dict[str, Any]:
        execution_config = ExecutionConfig.from_json(config)
        execution_config.engine.use_threads(config["threads"])
        model = self.model(execution_config, config["precision"])
        network, stream = model.backbone("output"), Stream(self._device)
        layout = execution_config.engine.memory_format
        images = self.images(batch_size).contiguous(memory_format=layout).to(self._device, model.dtype)

        def run() -> tuple[Tensor, ...]:
            found: tuple[Tensor, ...] = network(images)
            stream.fence().wait()
            return found

        with torch.inference_mode(), stream.work("trial"):
            for _ in range(WARM_UP):
                outputs = run()
            crossing = (each.cpu().float() if each.is_floating_point() else each.cpu() for each in outputs)
            outputs = model.head("output")(*crossing)
            difference_found = difference(outputs, self._outputs_as_built(batch_size))
            allowed = MAX_DIFFERENCES.get(config["precision"], math.inf)
            if difference_found > allowed and execution_config.engine is not Engine.TORCH:
                allowed = self._allowed_for_engines(batch_size)
            if self._device.type == "cuda" and torch.backends.cudnn.allow_tf32:
                allowed = max(allowed, MAX_TF32_DIFFERENCE)
            if not (math.isfinite(difference_found) and difference_found <= allowed):
                accepted = f"{allowed:g} is allowed" if math.isfinite(allowed) else "any finite difference is allowed"
                raise ConfigurationError(
                    f"Results differ from the model's as built by {difference_found:.2g} of the largest; {accepted}."
                )
            measured = measure_steadily(lambda: timed(run), lambda: time.monotonic() < end)
        return {**_answer(measured), "difference": difference_found}

    def _segments(self, config: Mapping[str, Any], batch_size: int, end: float) -> dict[str, Any]:
        use_threads(config["threads"])
        model, stream = self.model(ExecutionConfig.from_json(config), config["precision"]), Stream(self._device)
        pieces, _ = model.segments()
        channels_last = config["convolutions"] != Convolutions.CONTIGUOUS.value
        own_layout, other_layout = torch.channels_last, torch.contiguous_format
        if not channels_last:
            own_layout, other_layout = other_layout, own_layout
        tensors: tuple[Tensor, ...] = (self.images(batch_size).to(self._device, model.dtype),)
        work, conversion = [], []
        watch = Stopwatch(self._device)

        def measured(run: Callable[[], object]) -> dict[str, Any]:
            for _ in range(WARM_UP - 1):
                run()
            return _answer(measure_steadily(lambda: _samples(watch, run), lambda: time.monotonic() < end))

        with torch.inference_mode(), stream.work("trial"):
            for piece in pieces:
                inputs = _in_layout(tensors, own_layout)
                other_inputs = _in_layout(tensors, other_layout)
                conversion.append(measured(functools.partial(_in_layout, other_inputs, own_layout)))
                work.append(measured(functools.partial(piece, *inputs)))
                tensors = piece(*inputs)
        return {"costs": [], WORK: work, CONVERSION: conversion}

    def _outputs_as_built(self, batch_size: int) -> tuple[Tensor, ...]:
        """Returns the outputs of the model as built, contiguous and eager, with this thread's number of threads.

        An ONNX model is run by its native engine.
        """
        key = batch_size, torch.get_num_threads()
        if key not in self._expected:
            as_built: Callable[[Tensor], Any] = (
                self._as_built
                if isinstance(self._as_built, nn.Module)
                else self._source(folding=True).backbone("output")
            )
            found = as_built(self.images(batch_size))
            self._expected[key] = found if isinstance(found, tuple) else (found,)
        return self._expected[key]

    def _allowed_for_engines(self, batch_size: int) -> float:
        """Returns how far other engines than torch may be from the model as built; see ``allowed_difference``."""
        if not isinstance(self._as_built, nn.Module):
            return MAX_DIFFERENCE
        return allowed_difference(self._as_built, (self.images(batch_size),), self._outputs_as_built(batch_size))

    def _pipeline(self, config: Mapping[str, Any], about: Mapping[str, Any], end: float) -> dict[str, Any]:
        use_threads(1)  # like every thread that starts a pipeline
        execution_config = ExecutionConfig.from_json(about["form"])
        settings = StageSettings(
            split_point=config["split_point"],
            batch_size=config["batch_size"],
            batch_timeout_s=BATCH_TIMEOUT_S,
            drop_policy=DropPolicy.BLOCK,
            memory_policy=config["memory_policy"],
            cuda_graphs=config["cuda_graphs"],
        )
        model = self.model(execution_config, about["precision"])
        num_threads = config["backbone_threads"], config["head_threads"]
        measured = measure_steadily(lambda: _periods(model, settings, num_threads), lambda: time.monotonic() < end)
        return _answer(measured)


def timed(run: Callable[[], object], group_s: float | None = None) -> list[float]:
    """Returns the seconds of each call: at least one call, then more until ``group_s`` has passed."""
    group_s = GROUP_S if group_s is None else group_s
    samples: list[float] = []
    while not samples or (sum(samples) < group_s and len(samples) < MAX_SAMPLES):
        begin = time.perf_counter()
        run()
        samples.append(time.perf_counter() - begin)
    return samples


def _samples(watch: Stopwatch, run: Callable[[], object]) -> list[float]:
    """Returns the seconds of each of several calls in a row, which together take about ``SEGMENT_S``."""
    count = max(1, min(MAX_SAMPLES, round(SEGMENT_S / max(watch.time(run), 1e-9))))

    def repeat(lap: Lap) -> None:
        for _ in range(count):
            run()
            lap()

    return watch.laps(repeat)[1]


def _periods(model: SplitModel, settings: StageSettings, num_threads: tuple[int, int]) -> list[float]:
    """Returns the seconds an image takes in a saturated pipeline, a sample a batch, without the first batches."""
    size, batches = settings.batch_size, 2 * WARM_UP + 2
    ends: list[float] = []

    def deliver(origin: Origin, detections: Detections) -> None:
        if origin.header % size == size - 1:
            ends.append(time.monotonic())

    with LocalPipeline(model, settings, deliver, num_threads=num_threads) as pipeline:
        pipeline.feed(itertools.repeat(Pixels.blank(), size * batches))
        pipeline.finish()
    return [(later - sooner) / size for sooner, later in itertools.pairwise(ends[WARM_UP - 1 :])]


def _in_layout(tensors: tuple[Tensor, ...], layout: torch.memory_format) -> tuple[Tensor, ...]:
    """Returns the tensors in that layout. Tensors without four dimensions stay as they are."""
    return tuple(tensor.contiguous(memory_format=layout) if tensor.dim() == 4 else tensor for tensor in tensors)


def _answer(measured: Measured) -> dict[str, Any]:
    return {"costs": list(measured.costs), "uncertain": measured.uncertain}
