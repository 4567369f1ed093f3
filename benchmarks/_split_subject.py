"""One model of the splitting benchmark, with its pictures, its profile and its split points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from _gpu_only import Baseline
from _split_rivals import Feed, Split
from torch import Tensor, nn
from torch.nn import functional

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Limits, SuppressOverlaps
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.pipeline.profiler import Effort, Profiler
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.runtime.num_threads import max_threads, run_with_threads
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.planner import SplitChoice
from split_infer_ros.split.profile import Profile
from split_infer_ros.split.profile_samples import make_profile

PICTURES = 64
TOP_1 = Limits(score_threshold=0.0, max_detections=1)
CANDIDATES = 400  # of a detector, in a picture
TURNS = 16  # of a full run, at least, at each batch size
MIN_BATCHES = 2  # timed in a turn, so that stages overlap
TRIAL = 3  # batches


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Attributes:
        batch_sizes: of every model.
        samples: timed pictures of each configuration, at least; 0: as many as time allows.
        turn_s: of a configuration, about, where there is no number of samples.
        profile: how the planner's profile is made.
        rivals: fixed split points besides the paper's, at the smallest batch size: the best of those tried.
        tried: how many split points are tried for that, evenly spaced; 0 for all.
    """

    batch_sizes: Sequence[int]
    samples: int
    turn_s: float
    profile: Effort
    rivals: int
    tried: int

    def batches_a_turn(self, choice: SplitChoice) -> int:
        """How many batches of each configuration are timed in a turn."""
        if self.samples:
            return max(MIN_BATCHES, self.samples // (choice.batch_size * TURNS))
        return max(MIN_BATCHES, math.ceil(self.turn_s * choice.throughput / choice.batch_size))


class Subject:
    """One model, made ready for all its rivals, and its pictures."""

    def __init__(self, name: str, device: torch.device, extent: Extent) -> None:
        self.entry = find_model(name)
        self.extent = extent
        self.pictures = draw_pictures(self.entry, PICTURES)
        module, images = self._build()
        self.limits = run_with_threads(max_threads(), lambda: limits_for(self.entry, module, images))
        self.baseline = Baseline(self.entry, module, device, self.limits)
        self.model = SplitModel(self.entry, module, device)
        self.profile = self._measure()

    @property
    def detects(self) -> bool:
        """Whether the model is a detector, whose overlaps the rivals suppress."""
        return isinstance(self.entry.decode, SuppressOverlaps)

    @property
    def papers_split_point(self) -> str:
        """Behind the features and before the classifier (§4.4), or, in a detector, before its heads.

        That is the catalogue's default for a classifier. The paper has no detectors.
        """
        features = [
            split_point.name for split_point in self.model.split_points if split_point.name.startswith("backbone.")
        ]
        return features[-1] if features else self.model.split_point("default").name

    def split(self, split_point: str, batch_size: int) -> Split:
        """The pipeline at that split point."""
        point = self.profile.point(split_point, batch_size)
        assert point is not None
        backbone_s, head_s = self.profile.co_run.busy(point.backbone_stage_s, point.head_stage_s)
        # Where the head is the slower one, batches fill all slots; else, on a CPU, one is with the backbone.
        ahead = StageSettings().pool_slots if head_s > backbone_s or self.model.device.type == "cuda" else 1
        return Split(self.model, split_point, Feed(self.pictures, batch_size), self.limits, ahead)

    def fixed_split_points(self, planners: str, batch_size: int) -> list[str]:
        """The best split points in a brief trial, the planner's and the paper's left out.

        If those two are the same, there is at least one. The turns measure them anew: luck in the trial does not count.
        """
        papers, extent = self.papers_split_point, self.extent
        wanted = extent.rivals or (1 if papers == planners else 0)
        others = [
            split_point.name for split_point in self.model.split_points if split_point.name not in (planners, papers)
        ][::-1]
        step = math.ceil(len(others) / extent.tried) if extent.tried else 1
        speed = {split_point: self._speed(split_point, batch_size) for split_point in others[::step]} if wanted else {}
        return sorted(speed, key=lambda split_point: -speed[split_point])[:wanted]

    def _speed(self, split_point: str, batch_size: int) -> float:
        split = self.split(split_point, batch_size)
        try:
            return split.take(TRIAL, nullcontext())["images_per_s"]
        finally:
            split.close()

    def _build(self) -> tuple[nn.Module, Tensor]:
        preprocess = self.entry.preprocess
        gathered = preprocess.gather(self.pictures, preprocess.staging(len(self.pictures)))
        images = preprocess.normalise(gathered)[::8]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return run_with_threads(max_threads(), lambda: randomise(self.entry.build(), images)), images

    def _measure(self) -> Profile:
        """Made now, not read."""
        profiler = Profiler(self.model, self.pictures[0], self.limits, self.extent.profile)
        samples = profiler.measure(self.extent.batch_sizes)
        return make_profile(self.entry.name, str(self.model.device), self.model.split_points, samples)


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
