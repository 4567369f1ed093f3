"""Builds and times one configuration at a time, in a process of its own; see worker and trial_process."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from split_infer_ros.autotuning.lane_run import WARM_UP, LaneRun
from split_infer_ros.autotuning.live_quantisation import LiveQuantisation
from split_infer_ros.autotuning.pipeline_run import time_pipeline
from split_infer_ros.autotuning.profile_trials import measure_profile
from split_infer_ros.autotuning.result_check import ResultCheck
from split_infer_ros.autotuning.spaces import (
    CHAIN,
    NETWORK,
    PROFILE,
    QUANTISE,
    RIVAL,
    RIVALS,
    SEGMENTS,
    SPLIT_POINT,
    TURNS,
    UNIFORM,
)
from split_infer_ros.buffers.host_arrays import Floats, Values, as_tensor, copy_into, torch_dtype
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.steady import measure_steadily
from split_infer_ros.measurements.turns import timed, timed_in_turns
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.operator_placement.placed_backbone import make_backbone
from split_infer_ros.runtime.cores import StageCores
from split_infer_ros.runtime.inference import inference_mode
from split_infer_ros.runtime.num_threads import max_threads, use_threads
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.server.warm_up import count_lanes
from split_infer_ros.split.load import build_model, choose_device, make_network
from split_infer_ros.split.located_spec import located
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.network import Network
from split_infer_ros.split.quantised_network import place
from split_infer_ros.split.result_agreement import ResultDifference
from split_infer_ros.split.sandbox.inspection import inspect_files
from split_infer_ros.split.split_points import OUTPUT

LONG_WARM_UP_S = 1.0  # after a warm-up of this length, no further calls are needed
MAX_BYTES_OF_RIVALS = 2**28  # the most weights: each engine that takes turns holds up to three copies of them


class Trials:
    """Runs trials of one model on one device. The model is built once for all of them.

    Args:
        spec: the model and its device. Each trial sets the execution config itself.

    Raises:
        ConfigurationError: the model or the device does not exist.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = located(spec)
        self._device = choose_device(spec.device)
        self._entry, self._as_built = build_model(self._spec)
        self._networks: dict[bool, Network] = {}
        self._stream = Stream(self._device)
        self._rivals: dict[str, LaneRun] = {}  # calls that may take turns, by configuration and batch size

    def run(self, stage: str, config: Mapping[str, Any], about: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Times a configuration.

        Args:
            stage: ``network``, ``pipeline``, ``segments`` of a network, ``chain``, ``rival``, ``rivals``, ``profile``
                or ``quantise``. For the last two, see ``measure_profile`` and ``LiveQuantisation.run``.
            config: a configuration of that stage's space. For a rival it is a configuration of the network, for a chain
                one with ``segments``. For rivals it is empty.
            about: ``batch_size`` for all stages but the pipeline. A profile also needs ``cores``, the numbers of each
                stage's cores. A chain also needs ``uniform``, the configuration of
                the network with which it takes turns. The pipeline needs ``form``, the configuration of its network.
                Rivals need ``rivals``, configurations that take turns, by name. A rival may have ``split_point``:
                a backbone that ends there is exported, too, so that a node need not do it.
            seconds: an uncertain measurement is not repeated after this many seconds.

        Returns:
            Facts by name, which depend on the stage:

            - For the network, ``costs`` in seconds per batch, and whether they are ``uncertain``. ``difference`` says
              how far its results are from those of the model as built, as a share of the largest value. ``differs``
              says it in words: in pixels and scores, if the model detects enough in the compared images.
            - For the pipeline, ``costs`` in seconds per image, and whether they are ``uncertain``.
            - For segments, see ``time_segments``.
            - For a chain, ``costs`` and ``uniform``: the seconds per batch of the chain and of the uniform
              configuration in each turn. The chain also has ``difference`` and ``differs``.
            - For a rival, ``costs`` of a few batches, ``difference`` and ``differs``.
            - For rivals, ``turns``: the seconds per batch of each rival in each turn, unless its weights are too large.

        Raises:
            ConfigurationError: the results differ too much from those of the model as built.
        """
        end = time.monotonic() + seconds
        trials = {SEGMENTS: self._segments, NETWORK: self._network, CHAIN: self._chain, RIVAL: self._rival}
        trials |= {RIVALS: self._take_turns, PROFILE: self._profile}
        trials[QUANTISE] = lambda config, about, end: self._quantisation.run(about)
        with ThreadPoolExecutor(1) as executor:  # when its thread ends, torch's helper threads end too
            return executor.submit(trials.get(stage, self._pipeline), config, about, end).result()

    def model(self, execution_config: ExecutionConfig) -> SplitModel:
        """Returns the model with an execution config. Models share their weights if ``folding`` is the same in both."""
        if isinstance(self._as_built, OnnxGraph):  # the file may crash another engine
            inspect_files(replace(self._spec, execution_config=execution_config))
        quantised = self._quantisation.network if execution_config.precision is Precision.INT8 else None
        if quantised is not None:
            return SplitModel(quantised, self._device, execution_config)
        return place(self._source(execution_config.folding), self._device, execution_config)

    def images(self, batch_size: int) -> Floats:
        """Returns a batch of drawn scenes, float32 (N, 3, h, w). Equal batch sizes give equal images."""
        return self._check.batches(batch_size)[0]

    @cached_property
    def _quantisation(self) -> LiveQuantisation:
        return LiveQuantisation(SplitModel(self._source(folding=True)))

    @cached_property
    def _check(self) -> ResultCheck:
        return ResultCheck(self._as_built, SplitModel(self._source(folding=True)))

    def _source(self, folding: bool) -> Network:
        """Returns the network. It is prepared once for each value of ``folding``."""
        if folding not in self._networks:
            built = self._as_built if isinstance(self._as_built, OnnxGraph) else copy.deepcopy(self._as_built)
            self._networks[folding] = make_network(self._entry, built, folding=folding)
        return self._networks[folding]

    def _network(self, config: Mapping[str, Any], about: Mapping[str, Any], end: float) -> dict[str, Any]:
        with inference_mode(), self._stream.work("trial"):
            run, found = self._checked(config, about["batch_size"])
            measured = measure_steadily(lambda: run.per_batch(timed(run)), lambda: time.monotonic() < end)
        return {**measured.as_json(), **_facts(found)}

    def _chain(self, config: Mapping[str, Any], about: Mapping[str, Any], end: float) -> dict[str, Any]:
        with inference_mode(), self._stream.work("trial"):
            uniform, _ = self._checked(about[UNIFORM], about["batch_size"])
            chain, found = self._checked(config, about["batch_size"])
            turns = timed_in_turns({CHAIN: chain, UNIFORM: uniform}, lambda: time.monotonic() < end)
        costs = {CHAIN: chain.per_batch(turns[CHAIN]), UNIFORM: uniform.per_batch(turns[UNIFORM])}
        return {"costs": costs[CHAIN], UNIFORM: costs[UNIFORM], **_facts(found)}

    def _rival(self, config: Mapping[str, Any], about: Mapping[str, Any], end: float) -> dict[str, Any]:
        batch_size = about["batch_size"]
        with inference_mode(), self._stream.work("trial"):
            run, found = self._checked(config, batch_size)
            if about.get(SPLIT_POINT, OUTPUT) != OUTPUT and not isinstance(self._as_built, OnnxGraph):
                with suppress(ConfigurationError):  # it says nothing about other split points; the node sees it, too
                    make_backbone(self.model(ExecutionConfig.from_json(config)), about[SPLIT_POINT])
            if self._weight_bytes() <= MAX_BYTES_OF_RIVALS:
                self._rivals[_key(config, batch_size)] = run
            return {"costs": run.per_batch(timed(run)), **_facts(found)}

    def _take_turns(self, config: Mapping[str, Any], about: Mapping[str, Any], end: float) -> dict[str, Any]:
        batch_size = about["batch_size"]
        keys = {name: _key(rival, batch_size) for name, rival in about[RIVALS].items()}
        runs = {name: self._rivals[key] for name, key in keys.items() if key in self._rivals}
        self._rivals.clear()  # frees memory for later rivals
        with inference_mode(), self._stream.work("trial"):
            found = timed_in_turns(runs, lambda: time.monotonic() < end) if runs else {}
        return {"costs": [], TURNS: {name: runs[name].per_batch(costs) for name, costs in found.items()}}

    def _weight_bytes(self) -> int:
        if isinstance(self._as_built, OnnxGraph):
            return int(self._as_built.proto.ByteSize())
        from split_infer_ros.split.device_weights import bytes_of  # only here: it imports torch

        return bytes_of(self._as_built.state_dict().values())

    def _segments(self, config: Mapping[str, Any], about: Mapping[str, Any], end: float) -> dict[str, Any]:
        from split_infer_ros.autotuning.segment_trials import time_segments  # only here: it imports torch

        use_threads(config["threads"])
        execution_config = ExecutionConfig.from_json(config)
        model = self.model(execution_config)
        images = as_tensor(self.images(about["batch_size"])).to(self._device, torch_dtype(model.dtype))
        return time_segments(model, images, execution_config.convolutions, end)

    def _checked(self, config: Mapping[str, Any], batch_size: int) -> tuple[LaneRun, ResultDifference]:
        """Returns a call of the network, and how far its results differ from those of the model as built.

        The call waits for its results. Batches of several images mean that frames come fast. If a node then uses lanes,
        the call uses them too, unless the configuration has fewer threads than there are.

        Raises:
            ConfigurationError: the results differ too much.
        """
        execution_config = ExecutionConfig.from_json(config)
        model, num_threads = self.model(execution_config), execution_config.threads or max_threads()
        num_lanes = count_lanes(model) if batch_size > 1 and not execution_config.threads else 1
        set_up = partial(execution_config.engine.use_threads, max(1, num_threads // num_lanes), num_lanes)
        set_up()
        network = make_backbone(model, OUTPUT)

        def compute(images: Values) -> Sequence[Values]:
            set_up()  # a rival may have set other threads in its turn
            found: Sequence[Values] = network(images)
            self._stream.fence().wait()
            return found

        run = partial(compute, _images_for(model, self.images(batch_size)))
        run()
        begin = time.monotonic()
        for _ in range(WARM_UP - 1):
            run()
            if time.monotonic() > begin + LONG_WARM_UP_S:
                break
        found = self._check.difference(model, batch_size, lambda images: _on_host(compute(_images_for(model, images))))
        return LaneRun(run, num_lanes, set_up), found

    def _profile(self, config: Mapping[str, Any], about: Mapping[str, Any], end: float) -> dict[str, Any]:
        use_threads(1)  # like every thread that starts a pipeline
        cores = StageCores.of_numbers(about["cores"])
        return measure_profile(self.model(ExecutionConfig.from_json(config)), about["batch_size"], cores=cores)

    def _pipeline(self, config: Mapping[str, Any], about: Mapping[str, Any], end: float) -> dict[str, Any]:
        return time_pipeline(self.model(ExecutionConfig.from_json(about["form"])), config, end)


def _key(config: Mapping[str, Any], batch_size: int) -> str:
    return f"{json.dumps(config, sort_keys=True)} {batch_size}"


def _images_for(model: SplitModel, images: Floats) -> Values:
    """Returns images in the form that a model's backbone takes."""
    blank = model.blank_images(len(images))
    copy_into(blank, images)
    return blank


def _on_host(values: Sequence[Values]) -> list[Values]:
    return [each if isinstance(each, np.ndarray) else each.cpu() for each in values]


def _facts(found: ResultDifference) -> dict[str, Any]:
    return {"difference": found.largest, "differs": str(found)}
