"""Compares a model's network in lower precisions with the same network in fp32, on OpenVINO, which has them all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from benchmarks.common.claim import Claim
from benchmarks.common.estimate import ratio
from benchmarks.common.turns import Contest, rotated
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.engines.precision_checks import has_vnni
from split_infer_ros.engines.result_difference import difference
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import RGB, Pixels
from split_infer_ros.measurements.turns import timed
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.quantisation.calibrate import check_packages
from split_infer_ros.quantisation.float_graph import float_graph
from split_infer_ros.quantisation.quantise import quantise_graph
from split_infer_ros.quantisation.scope import Scope
from split_infer_ros.runtime.num_threads import run_with_threads
from split_infer_ros.sources.scenes import draw_scene
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_engines import choose_precision
from split_infer_ros.split.quantised_network import QuantisedNetwork

GOALS = {  # how many times as fast as fp32, by model
    Precision.BF16: {"resnet50": 1.6, "yolo_sized": 1.6},
    Precision.INT8: {"resnet50": 3.0, "yolo_sized": 1.8},
}
NUM_SCENES = 16  # scenes on which int8 is calibrated
CONFIG = ExecutionConfig(engine=Engine.OPENVINO)
WARM_UP = 3  # calls before the timed ones
PAUSE_S = 0.05  # in this pause, the waiting threads of one rival go to sleep


class PrecisionRivals:
    """A network at batch 1, in each precision that this machine has.

    Args:
        name: the model's name in reports.
        model: the model on a CPU.
        goals: how many times as fast as fp32 each precision should be. Only fp32 and these precisions are measured.
        quantise: returns the model in int8, or raises ConfigurationError.
        group_s: how many seconds the network is called in each precision in a turn.

    Attributes:
        contests: one contest if this machine has a lower precision that has a goal; otherwise empty.
        models: the model in each precision that this machine has.
        refused: for each precision that is not available, a sentence that says why.
    """

    def __init__(
        self,
        name: str,
        model: SplitModel,
        *,
        goals: Mapping[Precision, float],
        quantise: Callable[[SplitModel], SplitModel],
        group_s: float,
    ) -> None:
        self._name, self._group_s, self._goals, self._quantise = name, group_s, goals, quantise
        self.models: dict[Precision, SplitModel] = {}
        self.refused: dict[Precision, str] = {}
        self._networks: dict[Precision, torch.nn.Module] = {}
        random = torch.Generator().manual_seed(0)
        self._images = torch.randn((1, *model.entry.image_shape), generator=random)
        for precision in (Precision.FP32, *goals) if goals else ():
            try:
                self._add(model, precision)
            except ConfigurationError as error:
                self.refused[precision] = str(error)
        self._differences = {precision: self._difference(precision) for precision in self._networks}
        self.contests: list[Contest] = []
        if len(self._networks) > 1:
            self.contests.append(Contest(f"{name}, precisions", self._take, lambda _: self.claims()))

    def claims(self) -> list[Claim]:
        """Returns a claim for each lower precision: how many times as fast as fp32 it is."""
        claims = []
        for contest in self.contests:
            for precision in self._lower:
                if precision is Precision.INT8 and not has_vnni():
                    continue  # int8 runs, but its goals are for processors with VNNI
                found = ratio(contest.figures[Precision.FP32.value], contest.figures[precision.value])
                name = f"{self._name}, batch 1, {CONFIG.engine_text}: {precision.value}, times fp32"
                claims.append(Claim(name, found, "x", self._goals[precision], turn_s=contest.turn_s))
        return claims

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each precision that was refused, and a row with the medians and samples of all others."""
        rows: list[dict[str, Any]] = [
            {"what": f"{self._name}, {precision.value}", "model": self._name, "refused": reason, "samples": {}}
            for precision, reason in self.refused.items()
        ]
        for contest in self.contests:
            rows.append(
                {
                    "what": contest.name,
                    "model": self._name,
                    "batch_size": 1,
                    "engine": CONFIG.engine_text,
                    "turns": contest.turns,
                    **{rival: statistics.median(values) for rival, values in contest.figures.items()},
                    "differences": {each.value: found for each, found in self._differences.items()},
                    "samples": {rival: list(values) for rival, values in contest.figures.items()},
                }
            )
        return rows

    @property
    def _lower(self) -> list[Precision]:
        return [precision for precision in self._networks if precision is not Precision.FP32]

    def _add(self, model: SplitModel, precision: Precision) -> None:
        if precision is Precision.INT8:
            model = self._quantise(model)
        else:
            choose_precision(model, (precision,), CONFIG.engine_text)
        placed = model.placed(model.device, replace(CONFIG, precision=precision))
        self._networks[precision] = placed.backbone("output")
        self.models[precision] = placed

    def _difference(self, precision: Precision) -> float:
        """Returns how far the results are from those in fp32, as a share of the largest value."""
        found, expected = (self._run(each) for each in (precision, Precision.FP32))
        return difference(found, expected)

    def _run(self, precision: Precision) -> tuple[torch.Tensor, ...]:
        def work() -> tuple[torch.Tensor, ...]:
            CONFIG.engine.use_threads(0)
            with torch.inference_mode():
                return tuple(self._networks[precision](self._images))

        return run_with_threads(None, work)

    def _take(self, number: int) -> dict[str, float]:
        """Returns the median seconds of a call in each precision."""
        figures = {}
        for precision in rotated(list(self._networks), number):
            time.sleep(PAUSE_S)
            figures[precision.value] = self._timed(self._networks[precision])
        return figures

    def _timed(self, network: torch.nn.Module) -> float:
        def work() -> float:
            CONFIG.engine.use_threads(0)
            with torch.inference_mode():
                for _ in range(WARM_UP):
                    network(self._images)
                return statistics.median(timed(lambda: network(self._images), self._group_s))

        return run_with_threads(None, work)


def goals_of(name: str) -> dict[Precision, float]:
    """Returns how many times as fast as fp32 each lower precision should be for a model; empty if it has no goals."""
    return {precision: goals[name] for precision, goals in GOALS.items() if name in goals}


def quantised_on_scenes(model: SplitModel) -> SplitModel:
    """Returns a model in int8, calibrated on drawn scenes.

    Only the speed of the result is measured: the model has random weights, so its results mean nothing.

    Raises:
        ConfigurationError: a package is missing, or the model cannot be quantised.
    """
    check_packages()
    preprocess = model.entry.preprocess
    scenes = [Pixels(draw_scene(0, index).image, RGB) for index in range(NUM_SCENES)]
    gathered = preprocess.gather(scenes, preprocess.staging(NUM_SCENES))
    images = torch.from_numpy(preprocess.normalise(gathered, channels_last=False)).split(1)
    proto = quantise_graph(model, float_graph(model), Scope.ALL_LAYERS, images, count=NUM_SCENES)
    return SplitModel(QuantisedNetwork(model.network, OnnxGraph(f"{model.entry.name} in int8", proto)))
