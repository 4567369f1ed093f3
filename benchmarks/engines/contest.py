"""Compares a model in this package with engine ``auto`` with each engine alone, in turns."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.common.claim import Claim
from benchmarks.common.estimate import Estimate, ratio
from benchmarks.common.images import draw_images
from benchmarks.common.turns import Contest, rotated
from benchmarks.common.usage import Usage
from benchmarks.common.yolo_sized import export, make_network
from benchmarks.rivals.image_feed import ImageFeed
from benchmarks.rivals.pipelines import SplitPipeline
from benchmarks.rivals.vendor_networks import VENDORS, Run, Throughput, throughputs_of, vendors_of
from split_infer_ros.autotuning.best_known import find_best_known
from split_infer_ros.autotuning.engine_choice import MAX_COMPARISON_S, compare_engines_once
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.precision import Precision
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.turns import timed
from split_infer_ros.models.detections import Limits
from split_infer_ros.runtime.num_threads import run_with_threads, use_one_thread
from split_infer_ros.split.load import build_model, load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_engines import untuned_engine
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.telemetry.machine import num_cores

AUTO, BUILT = "auto", "torch, as built"
PIPELINE = "pipeline"
YOLO = "yolo_sized"
BATCH_SIZE = 8  # for throughput
WARM_UP = 3  # calls before the timed ones
QUICK_COMPARISON_S = 10.0  # how long a quick run compares engines
PAUSE_S = 0.05  # in this pause, the waiting threads of one rival go to sleep
MIN_PART = 0.95  # goal for the interval's lower end, as a share of the best engine alone; the figure should be 0.97


class EnginesAlone:
    """The rivals for one model: this package with engine ``auto``, and each engine alone.

    At batch 1, the package runs the network. At batch 8, it runs the whole pipeline.

    Args:
        name: the model's name; ``yolo_sized`` is an ONNX file.
        folder: the folder for the ONNX file and the database of measurements.
        group_s: how many seconds each network is called in a turn.
        batches: how many batches the pipeline runs in a turn.
        quick_export: whether the network is exported for engines alone in the quick way; see ``quickly`` of
            ``vendors_of``.
        with_throughput: whether throughput is measured as well.

    Attributes:
        contests: the contest of latency and, if it is measured, of throughput.
        model: the model with the engine that ``auto`` chose at batch 1.
    """

    def __init__(
        self, name: str, folder: Path, *, group_s: float, batches: int, quick_export: bool, with_throughput: bool
    ) -> None:
        use_one_thread()  # threads that another model left would take cores from the trials
        self.name = name
        self._comparison_s = QUICK_COMPARISON_S if quick_export else MAX_COMPARISON_S
        self._comparisons: dict[int, str] = {}  # the log's line about each comparison, by batch size
        self._group_s, self._batches = group_s, batches
        self._module, spec = _module_and_spec(name, folder)
        self._usage = Usage()
        database = Database(folder / "tuning.jsonl")
        self._auto = {
            size: self._choose(spec, database, size) for size in ((1, BATCH_SIZE) if with_throughput else (1,))
        }
        self.model = self._auto[1]
        images = _noise(self.model, 1)
        engine = self.model.execution_config.engine
        network = self.model.backbone("output")
        laid_out = images.contiguous(
            memory_format=torch.channels_last if engine.reads_channels_last else torch.contiguous_format
        )
        self._notes: dict[int, list[str]] = {size: [] for size in self._auto}  # on engines alone, by batch size
        alone = vendors_of(self._module, images, num_cores(), quick_export, self._notes[1].append)
        self._alone = [name for name in alone if name in VENDORS]  # in fp32
        self._runs: dict[str, Run] = {AUTO: lambda: network(laid_out), BUILT: lambda: self._module(images), **alone}
        self._engines = {AUTO: engine}
        self.contests = [Contest(f"{name}, latency", self._take_latency, lambda _: self.latency_claims())]
        self._throughputs: dict[str, Throughput] = {}
        if with_throughput:
            self._open_throughput(quick_export)
            contest = Contest(f"{name}, throughput", self._take_throughput, lambda _: self.throughput_claims())
            self.contests.append(contest)

    def latency_claims(self) -> list[Claim]:
        """Returns the claim that ``auto`` is as fast as the best engine alone in fp32."""
        contest = self.contests[0]
        found = ratio(contest.figures[self._best_alone(contest, min)], contest.figures[AUTO])
        name = f"{self.name}, batch 1: auto, times the best engine alone in fp32"
        return [Claim(name, found, "x", MIN_PART, turn_s=contest.turn_s)]

    def throughput_claims(self) -> list[Claim]:
        """Returns the claim that the pipeline serves as many images as the best engine alone in fp32."""
        contest = self.contests[1]
        name = f"{self.name}, batch {BATCH_SIZE}: pipeline, times the best engine alone in fp32"
        return [Claim(name, self.throughput_ratio(), "x", 1.0, turn_s=contest.turn_s)]

    def throughput_ratio(self) -> Estimate:
        """Returns the pipeline's images per second divided by those of the best engine alone in fp32."""
        contest = self.contests[1]
        return ratio(contest.figures[PIPELINE], contest.figures[self._best_alone(contest, max)])

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each contest: medians, samples and the engine that ``auto`` chose."""
        rows = []
        for contest, size in zip(self.contests, self._auto, strict=True):
            rows.append(
                {
                    "what": contest.name,
                    "model": self.name,
                    "batch_size": size,
                    "engine": self._auto[size].execution_config.engine.value,
                    "comparison": self._comparisons[size],
                    "notes": "; ".join(self._notes[size]),
                    "turns": contest.turns,
                    **{rival: statistics.median(values) for rival, values in contest.figures.items()},
                    "samples": {rival: list(values) for rival, values in contest.figures.items()},
                }
            )
        return rows

    def close(self) -> None:
        """Frees the pipeline's memory."""
        if len(self.contests) > 1:
            self._pipeline.close()

    def _choose(self, spec: ModelSpec, database: Database, batch_size: int) -> SplitModel:
        """Compares the engines, and returns the model as a node with engine ``auto`` runs it."""
        model, lines = load_model(spec), list[str]()
        compare_engines_once(
            model,
            spec,
            database,
            precision=Precision.FP32,
            batch_size=batch_size,
            say=lines.append,
            seconds=self._comparison_s,
        )
        self._comparisons[batch_size] = lines[-1].replace(spec.name, self.name) if lines else ""
        config = find_best_known(model, database, batch_size=batch_size).execution_config
        return model.placed(model.device, config.with_engine(AUTO, untuned_engine(model, Precision.FP32)))

    def _take_latency(self, number: int) -> dict[str, float]:
        """Returns the median seconds of a call of each network."""
        figures = {}
        for rival in rotated(list(self._runs), number):
            time.sleep(PAUSE_S)
            figures[rival] = self._timed(rival)
        return figures

    def _timed(self, rival: str) -> float:
        run, engine = self._runs[rival], self._engines.get(rival, Engine.TORCH)

        def work() -> float:
            engine.use_threads(0)
            with torch.inference_mode():
                for _ in range(WARM_UP):
                    run()
                with self._usage.of(rival):
                    return statistics.median(timed(run, self._group_s))

        return run_with_threads(None, work)

    def _open_throughput(self, quick_export: bool) -> None:
        model = self._auto[BATCH_SIZE]
        self._pipeline = SplitPipeline(
            model,
            split_point=model.split_point("default").name,
            feed=ImageFeed(draw_images(model.entry, 2 * BATCH_SIZE), BATCH_SIZE),
            limits=Limits(),
            ahead=2,
            lane_limit=math.inf,
        )
        images = _noise(model, BATCH_SIZE)
        self._throughputs = throughputs_of(
            self._module, images, num_cores(), quick_export, self._notes[BATCH_SIZE].append
        )

    def _take_throughput(self, number: int) -> dict[str, float]:
        """Returns the images per second of the pipeline and of each engine alone."""
        figures = {}
        for rival in rotated([PIPELINE, *self._throughputs], number):
            time.sleep(PAUSE_S)
            if rival == PIPELINE:
                figures[rival] = self._pipeline.take_turn(self._batches, nullcontext())["images_per_s"]
            else:
                figures[rival] = self._throughputs[rival](self._batches * BATCH_SIZE)
        return figures

    def _best_alone(self, contest: Contest, choose: Callable[[Iterable[float]], float]) -> str:
        """Returns the engine whose median ``choose`` takes from those of all engines alone in fp32."""
        medians = {statistics.median(contest.figures[rival]): rival for rival in self._alone}
        return medians[choose(medians)]


def _module_and_spec(name: str, folder: Path) -> tuple[nn.Module, ModelSpec]:
    """Returns the module that engines alone run, and the spec of the same model for the package."""
    if name == YOLO:
        module = make_network()
        path = Path(tempfile.mkdtemp(dir=folder), f"{YOLO}.onnx")
        export(module, path)
        return module, ModelSpec(str(path), device="cpu")
    spec = ModelSpec(name, "random", "cpu")
    _, module = build_model(spec)
    assert isinstance(module, nn.Module)
    return module, spec


def _noise(model: SplitModel, batch_size: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.randn((batch_size, *model.entry.image_shape), generator=random)
