"""Runs a placed model on images and compares it with the same model on one device (paper 004, §3.1.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, fx

from split_infer_ros.measurements.turns import timed_in_turns
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.operator_placement.placed_graph import apply_plan
from split_infer_ros.operator_placement.plan import PlacementPlan, Tag, make_plan
from split_infer_ros.runtime.captures import synchronize_device
from split_infer_ros.runtime.device import CPU, Device

LIMITS = Limits(score_threshold=0.05)  # usual in evaluations of detectors; it gives suppression work to do
PLACED, ONE_DEVICE = "placed", "on one device"


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """The results of running a placement plan. The same model with all operators on one device ran on the same images.

    Attributes:
        images: how many images ran, one by one.
        detections: how many objects the placed model found in all images.
        images_that_differ: in how many images the placed model and the model on one device found different classes or
            numbers of objects.
        score_difference: the largest difference between scores of the two models, over all other images.
        seconds: seconds per image in each turn, of the placed model and of the model on one device; None without a GPU.
    """

    images: int
    detections: int
    images_that_differ: int
    score_difference: float
    seconds: tuple[Sequence[float], Sequence[float]] | None


def run_plan(graph: fx.GraphModule, plan: PlacementPlan, images: Sequence[Tensor], *, gpu: Device | None) -> PlacedRun:
    """Runs a plan, and the same model with all operators on one device, on the same images.

    With a GPU, the one device is the GPU, and both models are timed in turns. Both bring their results to the host.
    Without a GPU, both processors are the CPU. Then only the results are compared, because copies from the CPU to
    itself say nothing about a GPU.

    Args:
        graph: the result of ``with_decode``, on the CPU.
        plan: the plan for the graph's operators.
        images: at least one image, float32 (1, C, H, W) each, on the CPU.
        gpu: the GPU; None if there is none.
    """
    devices = {Tag.GPU: gpu or CPU, Tag.CPU: CPU}
    only = Tag.CPU if gpu is None else Tag.GPU
    placed = _caller(graph, plan, images, devices=devices)
    on_one = _caller(graph, make_plan(plan.operators, lambda _: only), images, devices=devices)
    found, expected = placed(), on_one()
    seconds = None
    if gpu is not None:
        times = timed_in_turns({PLACED: _waiting(placed, gpu), ONE_DEVICE: _waiting(on_one, gpu)})
        placed_s, one_s = ([each / len(images) for each in times[name]] for name in (PLACED, ONE_DEVICE))
        seconds = placed_s, one_s
    alike = [mine.labels.tolist() == other.labels.tolist() for mine, other in zip(found, expected, strict=True)]
    differences = [
        float(np.abs(mine.scores - other.scores).max())
        for mine, other, is_alike in zip(found, expected, alike, strict=True)
        if is_alike and len(mine)
    ]
    return PlacedRun(
        images=len(images),
        detections=sum(map(len, found)),
        images_that_differ=alike.count(False),
        score_difference=max(differences, default=0.0),
        seconds=seconds,
    )


def _caller(
    graph: fx.GraphModule, plan: PlacementPlan, images: Sequence[Tensor], *, devices: Mapping[Tag, Device]
) -> Callable[[], list[Detections]]:
    """Returns a function that runs a plan on all images and returns the detections of each image."""
    placed = apply_plan(graph, plan, devices)
    device = devices[plan.devices[plan.operators[0].name]]
    inputs = [image.to(device) for image in images]

    def run() -> list[Detections]:
        with torch.inference_mode():
            return [found for image in inputs for found in placed(image, LIMITS)]

    return run


def _waiting(run: Callable[[], object], gpu: Device) -> Callable[[], object]:
    def run_to_its_end() -> None:
        run()
        synchronize_device(gpu)

    return run_to_its_end
