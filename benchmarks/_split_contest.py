"""One model in the three configurations that unified splitting compares, fed with the same pictures."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from _gpu_only import Baseline, Optimised
from torch import Tensor, nn
from torch.nn import functional

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Detections, Limits, SuppressOverlaps
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.pipeline.local import LocalPipeline
from split_infer_ros.pipeline.profiler import Effort, Profiler
from split_infer_ros.pipeline.settings import BLOCK, StageSettings
from split_infer_ros.split.cores import all_cores, on_cores
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.profile import Profile
from split_infer_ros.split.samples import make_profile

PICTURES = 64
TOP_1 = Limits(score_threshold=0.0, max_detections=1)
CANDIDATES = 400  # of a detector, in a picture
NOTHING = -1  # the best class where a detector finds none
LONG_S = 60.0


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Attributes:
        batch_sizes: of every model.
        samples: pictures a configuration, at least.
        batches: a configuration, at least.
        warm_up: batches before.
        most_seconds: a configuration ends after so long; what it then has counts, and the row says how many.
        profile: how the planner's profile is made.
        rivals: fixed cuts that are compared with the planner's, the best of those tried.
        tried: how many cuts are tried for that, evenly spaced; 0 for all.
        rounds: of that comparison.
        compared: for so many models, the first ones.
    """

    batch_sizes: Sequence[int]
    samples: int
    batches: int
    warm_up: int
    most_seconds: float
    profile: Effort
    rivals: int
    tried: int
    rounds: int
    compared: int


@dataclass
class Run:
    """Hands out pictures in batches and notes when, and what becomes of them."""

    pictures: Sequence[Pixels]
    batch_size: int
    warm_up: int
    labels: list[int] = field(default_factory=list)
    _taken: list[float] = field(default_factory=list)
    _done: list[float] = field(default_factory=list)

    def batches(self, extent: Extent) -> Iterator[Sequence[Pixels]]:
        """As many as the extent has it."""
        least = self.warm_up + max(extent.batches, math.ceil(extent.samples / self.batch_size))
        end = time.monotonic() + extent.most_seconds
        endless = itertools.cycle(self.pictures)
        while len(self._taken) < least and (time.monotonic() < end or len(self._taken) <= self.warm_up):
            self._taken.append(time.monotonic())
            yield list(itertools.islice(endless, self.batch_size))

    def note(self, found: Sequence[Detections]) -> None:
        """Results of the next batch, or of a part of it."""
        self.labels += [int(detections.labels[0]) if len(detections) else NOTHING for detections in found]
        if len(self.labels) % self.batch_size == 0:
            self._done.append(time.monotonic())

    @property
    def count(self) -> int:
        """Batches that are timed."""
        return len(self._done) - self.warm_up

    @property
    def period_s(self) -> float:
        """Between two batches, after the warm-up."""
        return (self._done[-1] - self._done[self.warm_up - 1]) / self.count

    @property
    def median_period_s(self) -> float:
        """The same, but for the moments in which the machine had something else to do."""
        return statistics.median(later - sooner for sooner, later in itertools.pairwise(self._done[self.warm_up - 1 :]))

    @property
    def latency_s(self) -> float:
        """Of a batch, the median."""
        times = [done - taken for taken, done in zip(self._taken, self._done, strict=True)]
        return statistics.median(times[self.warm_up :])

    def agreement(self, labels: Sequence[int]) -> float:
        """The part of the results that have these labels, one a picture, as far as there are labels."""
        places = (index % len(self.pictures) for index in range(len(self.labels)))
        same = [mine == labels[place] for mine, place in zip(self.labels, places, strict=True) if place < len(labels)]
        return sum(same) / len(same)


class Contest:
    """One model in all its configurations."""

    def __init__(self, name: str, device: torch.device, extent: Extent) -> None:
        self.entry = find_model(name)
        self.extent = extent
        self.pictures = draw_pictures(self.entry, PICTURES)
        module, images = self._build()
        self.limits = on_cores(all_cores(), lambda: limits_for(self.entry, module, images))
        self._baseline = Baseline(self.entry, module, device, self.limits)
        self.model = SplitModel(self.entry, module, device)
        self.labels: list[int] = []

    def _build(self) -> tuple[nn.Module, Tensor]:
        preprocess = self.entry.preprocess
        gathered = preprocess.gather(self.pictures, preprocess.staging(len(self.pictures)))
        images = preprocess.normalise(gathered)[::8]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return on_cores(all_cores(), lambda: randomise(self.entry.build(), images)), images

    def baseline(self, batch_size: int) -> Run:
        """As the paper's baseline is written."""
        run = Run(self.pictures, batch_size, self.extent.warm_up)
        on_cores(all_cores(), lambda: self._baseline.run(run.batches(self.extent), run.note))
        self.labels = max(self.labels, run.labels[: len(self.pictures)], key=len)
        return run

    def optimised(self, batch_size: int) -> Run:
        """As well as it can be done without a split."""
        run = Run(self.pictures, batch_size, self.extent.warm_up)
        optimised = Optimised(self.model, batch_size, self.limits)
        on_cores(all_cores(), lambda: optimised.run(run.batches(self.extent), run.note))
        return run

    def split(self, cut: str, batch_size: int, extent: Extent | None = None) -> Run:
        """The pipeline, cut there."""
        run = Run(self.pictures, batch_size, self.extent.warm_up)
        with self._pipeline(cut, batch_size, lambda origin, detections: run.note([detections])) as pipeline:
            for pictures in run.batches(extent or self.extent):
                pipeline.feed(pictures)
            pipeline.finish()
        return run

    def stages_alone(self, cut: str, batch_size: int) -> tuple[float, float]:
        """Seconds a batch in the backbone's and the head's stage, none of which works while the other does."""
        with self._pipeline(cut, batch_size, lambda origin, detections: None) as pipeline:
            for _ in range(1 + self.extent.profile.rounds):
                pipeline.feed(itertools.islice(itertools.cycle(self.pictures), batch_size))
                pipeline.finish()
            report = pipeline.backbone.report(time.monotonic())
        return report.preprocess_s + report.backbone_s, report.head_s + report.postprocess_s

    def _pipeline(self, cut: str, batch_size: int, note: Any) -> LocalPipeline:
        return LocalPipeline(self.model, StageSettings(cut, batch_size, LONG_S, BLOCK), note, self.limits)

    def profile(self) -> Profile:
        """Made now, not read."""
        profiler = Profiler(self.model, self.pictures[0], self.limits, self.extent.profile)
        samples = profiler.measure(self.extent.batch_sizes)
        return make_profile(self.entry.name, str(self.model.device), self.model.cuts, samples)

    def against_fixed_cuts(self, auto: str, batch_size: int) -> tuple[float, str]:
        """The planner's cut's throughput, in parts of that of the best other one: the least over the rivals.

        All cuts, or some, are tried briefly; the best of them then take turns with the planner's.
        """
        brief = replace(self.extent, samples=0, batches=min(6, self.extent.batches), warm_up=1, most_seconds=LONG_S)
        others = [cut.name for cut in self.model.cuts if cut.name != auto]
        step = math.ceil(len(others) / self.extent.tried) if self.extent.tried else 1
        tried = {cut: self.split(cut, batch_size, brief).period_s for cut in others[::-1][::step]}
        found = []
        for rival in sorted(tried, key=lambda cut: tried[cut])[: self.extent.rivals]:
            ratios = [
                self.split(rival, batch_size, brief).period_s / self.split(auto, batch_size, brief).period_s
                for _ in range(self.extent.rounds)
            ]
            found.append((statistics.median(ratios), rival))
        return min(found)


@torch.inference_mode()
def limits_for(entry: ModelEntry, module: nn.Module, images: Tensor) -> Limits:
    """A classifier's best class; of a detector, objects among so many candidates in a picture."""
    if not isinstance(entry.decode, SuppressOverlaps):
        return TOP_1
    scores = entry.decode.candidates(module(images)).scores.flatten(1)
    return Limits(float(scores.topk(CANDIDATES, dim=1).values[:, -1].median()))


def draw_pictures(entry: ModelEntry, count: int) -> list[Pixels]:
    """Seeded pictures of smooth shapes and textures in all colours: uint8, of the size that is cropped."""
    side = entry.preprocess.shorter_side or entry.preprocess.height
    random = torch.Generator().manual_seed(0)
    pictures = []
    for _ in range(count):
        layers = torch.zeros(1, 3, side, side)
        for cells in (2, 4, 8, 32):
            noise = torch.randn(1, 3, cells, cells, generator=random) * torch.rand(1, generator=random)
            layers += functional.interpolate(noise, size=(side, side), mode="bicubic")
        data = (127 + 90 * layers / layers.std()).clamp(0, 255).to(torch.uint8)
        pictures.append(Pixels(data[0].permute(1, 2, 0).contiguous(), (0, 1, 2)))
    return pictures
