"""One model of the splitting benchmark, with its images, its profile and its split points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.common.images import draw_images
from benchmarks.rivals.as_built import Baseline
from benchmarks.rivals.finish import limits_for
from benchmarks.rivals.image_feed import ImageFeed
from benchmarks.rivals.paper_000 import papers_split_point
from benchmarks.rivals.pipelines import SplitPipeline
from benchmarks.unified_splitting.copy_calls import CopyCalls, SharedSlots, count_copy_calls
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.models.candidates import SuppressOverlaps
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.runtime.num_threads import max_threads, run_with_threads
from split_infer_ros.server.profiling.profiler import Effort, Profiler
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.planner import SplitChoice
from split_infer_ros.split.profile import Profile
from split_infer_ros.split.profile_samples import make_profile
from split_infer_ros.split.torch_network import TorchNetwork

NUM_IMAGES = 64
MIN_TURNS = 16  # the fewest turns of a full run, at each batch size
MIN_BATCHES = 2  # the fewest batches timed in a turn, so that stages overlap
TRIAL_BATCHES = 3
COUNTED_IMAGES = 2  # images in the batch whose copy calls are counted; the count does not depend on it


@dataclass(frozen=True)
class SplitExtent:
    """Says how much is measured.

    Attributes:
        batch_sizes: the batch sizes of every model.
        min_samples: at least how many images of each configuration are timed; 0 for as many as time allows.
        turn_s: about how many seconds a configuration's turn takes if ``min_samples`` is 0.
        profile_effort: how much the planner's profile measures.
        num_fixed: how many fixed split points compete besides the paper's, at the smallest batch size: the best ones in
            a brief trial.
        num_tried: how many split points the brief trial runs, evenly spaced; 0 for all.
    """

    batch_sizes: Sequence[int]
    min_samples: int
    turn_s: float
    profile_effort: Effort
    num_fixed: int
    num_tried: int

    def batches_a_turn(self, choice: SplitChoice) -> int:
        """Returns how many batches of each configuration are timed in a turn, for the batch size of ``choice``."""
        if self.min_samples:
            return max(MIN_BATCHES, self.min_samples // (choice.batch_size * MIN_TURNS))
        return max(MIN_BATCHES, math.ceil(self.turn_s * choice.throughput / choice.batch_size))


class Subject:
    """One model, prepared for all its rivals, with its images and its profile.

    Args:
        name: the model's name in the catalogue.
        device: the device that runs whole models and backbones.
        extent: how much is measured.

    Attributes:
        entry: the model's entry in the catalogue.
        extent: as given.
        images: the images that all rivals get.
        weights: the model's weights by name, as they are before the preparation.
        limits: the limits that decide which detections are kept.
        baseline: the whole model as built.
        model: the prepared model.
        profile: the planner's profile of all split points.
    """

    def __init__(self, name: str, device: torch.device, extent: SplitExtent) -> None:
        self.entry = find_model(name)
        self.extent = extent
        self.images = draw_images(self.entry, NUM_IMAGES)
        module, inputs = self._build()
        self.weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}  # preparing changes them
        self.limits = run_with_threads(max_threads(), lambda: limits_for(self.entry, module, inputs))
        self.baseline = Baseline(self.entry, module, device, self.limits)
        self.model = SplitModel(TorchNetwork(self.entry, module), device)
        self.profile = self._measure()

    @property
    def detects(self) -> bool:
        """Whether the model is a detector. The rivals suppress a detector's overlaps."""
        return isinstance(self.entry.decode, SuppressOverlaps)

    @property
    def papers_split_point(self) -> str:
        """The name of the paper's split point; see ``papers_split_point``."""
        return papers_split_point(self.model)

    def split_at(self, split_point: str, batch_size: int, two_processes: bool = False) -> SplitPipeline:
        """Returns a pipeline at a split point, in one process or in two."""
        point = self.profile.point(split_point, batch_size)
        assert point is not None
        backbone_s, head_s = self.profile.contention.busy_s(point.backbone_stage_s, point.head_stage_s)
        # If the head is slower, batches fill all slots. Otherwise, on a CPU, one batch is in the backbone.
        ahead = StageSettings().pool_slots if head_s > backbone_s or self.model.device.type == "cuda" else 1
        return SplitPipeline(
            self.model,
            split_point=split_point,
            feed=ImageFeed(self.images, batch_size),
            limits=self.limits,
            ahead=ahead,
            weights=self.weights if two_processes else None,
        )

    def count_copies(self, split_point: str, two_processes: bool = False) -> CopyCalls:
        """Returns the copy calls of a batch at a split point, with memory that both CPU and GPU can access."""
        settings = StageSettings(split_point=split_point, batch_size=COUNTED_IMAGES, memory_policy=Policy.PINNED.value)
        connection = SharedSlots() if two_processes else None
        return count_copy_calls(self.model, settings, self.images[:COUNTED_IMAGES], connection)

    def fixed_split_points(self, planners: str, batch_size: int) -> list[str]:
        """Returns the best split points of a brief trial, without the planner's and the paper's.

        If these two are the same, at least one other split point is returned. The turns measure all split points again,
        so luck in the trial does not decide.
        """
        papers, extent = self.papers_split_point, self.extent
        num_fixed = extent.num_fixed or (1 if papers == planners else 0)
        if not num_fixed:
            return []
        others = [point.name for point in self.model.split_points if point.name not in (planners, papers)]
        others.reverse()
        step = math.ceil(len(others) / extent.num_tried) if extent.num_tried else 1
        images_per_s = {split_point: self._trial(split_point, batch_size) for split_point in others[::step]}
        return sorted(images_per_s, key=lambda split_point: -images_per_s[split_point])[:num_fixed]

    def _trial(self, split_point: str, batch_size: int) -> float:
        """Returns the images per second of a brief trial."""
        pipeline = self.split_at(split_point, batch_size)
        try:
            return pipeline.take_turn(TRIAL_BATCHES, nullcontext())["images_per_s"]
        finally:
            pipeline.close()

    def _build(self) -> tuple[nn.Module, Tensor]:
        """Returns the model with seeded weights and a batch of inputs, (N, C, H, W)."""
        preprocess = self.entry.preprocess
        gathered = preprocess.gather(self.images, preprocess.staging(len(self.images)))
        inputs = torch.from_numpy(preprocess.normalise(gathered))[::8]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return run_with_threads(max_threads(), lambda: randomise(self.entry.build(), inputs)), inputs

    def _measure(self) -> Profile:
        """Measures and returns the profile. It is never read from the database."""
        profiler = Profiler(self.model, image=self.images[0], limits=self.limits, effort=self.extent.profile_effort)
        samples = profiler.measure(self.extent.batch_sizes)
        return make_profile(
            model=self.model.entry.name,
            device=str(self.model.device),
            split_points=self.model.split_points,
            samples=samples,
        )
