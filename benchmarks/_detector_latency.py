"""Detectors end to end, one image: the network, and what finds objects in its answers (Table 4 in form).

Before: as torchvision does it, image by image and class by class (``SSD.postprocess_detections``). After: the whole
batch and all classes at once (``suppress``). Weights of no training say the same of every anchor, so the answers that
are decoded are drawn like a trained detector's: background nearly everywhere, objects at some anchors and their
neighbours.

And what falling back costs (§3.1.2): a model placed by the list, its copies included, against the same model on one
device. Where there is no GPU both devices are the CPU, so copies move nothing, and what is measured is what the walk's
copy operators cost by themselves: no word on what falling back costs on a GPU.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torchvision.ops import batched_nms

from split_infer_ros.models.detections import Candidates, Detections, Limits, SuppressOverlaps
from split_infer_ros.placement.graph import copy_to, place, read_operators, with_decode
from split_infer_ros.placement.operators import OperatorList
from split_infer_ros.placement.plan import Tag, make_plan
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.report import AT_MOST, Claim

PAPERS = {"ssdlite320": "SSD_MobileNet", "ssd_resnet50": "SSD_ResNet50", "yolov3": "Yolov3"}  # names of Table 4
LIMITS = Limits(0.01, 0.45, 100)  # GluonCV's, from which the paper's models come
PAPERS_FALLBACK = 0.5  # %
OBJECTS = 12
WARM_UP, LEAST_ROUNDS = 2, 3  # convolutions are laid out for speed at the second call
CPU = torch.device("cpu")


def measure(
    seconds: float, names: Sequence[str] = tuple(PAPERS), placed: Sequence[str] = ("ssdlite320", "ssd_resnet50")
) -> tuple[list[Mapping[str, Any]], list[Claim]]:
    """A row and a claim for each model and question.

    Args:
        seconds: of each comparison.
        names: of the models that run end to end.
        placed: those of them that are placed as well; the paper tells of SSD with ResNet.
    """
    rows: list[Mapping[str, Any]] = []
    claims: list[Claim] = []
    for name in names:
        model = load_model(name, "none", "cpu")
        rows.append(latency(load_model(name, "none", "auto"), seconds))
        what = f"{PAPERS[name]}, one image, times faster than with torchvision's suppression"
        claims.append(Claim(what, rows[-1]["speedup"], "x", 1.0))
        if name in placed:
            rows.append(fallback(model, seconds))
            what = f"{PAPERS[name]}, placed against all on one device, takes more by"
            claims.append(Claim(what, rows[-1]["overhead_percent"], "%", PAPERS_FALLBACK, AT_MOST))
    return rows, claims


def latency(model: SplitModel, seconds: float) -> dict[str, Any]:
    """Medians in milliseconds: the network until its answers are on the CPU, and either way to go on."""
    images = torch.zeros((1, *model.entry.image_shape)).contiguous(memory_format=torch.channels_last).to(model.device)
    backbone, head = model.backbone("output"), model.head("output")  # the second puts the answers in order
    assert isinstance(model.entry.decode, SuppressOverlaps)
    decode, candidates = model.entry.decode, model.entry.decode.candidates

    def network() -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = head(*copy_to(backbone(images), CPU))
        return outputs

    with torch.inference_mode():
        drawn = drawn_like(network())
        same(decode(drawn, LIMITS), class_by_class(candidates(drawn), LIMITS))
        network_s, after_s, before_s = interleaved(
            seconds,
            network,
            lambda: decode(drawn, LIMITS),
            lambda: class_by_class(candidates(drawn), LIMITS),
        )
    network_ms, after_ms, before_ms = (1e3 * statistics.median(found) for found in (network_s, after_s, before_s))
    return {
        "what": "detector",
        "model": model.entry.name,
        "device": str(model.device),
        "network_ms": network_ms,
        "decode_before_ms": before_ms,
        "decode_after_ms": after_ms,
        "before_ms": network_ms + before_ms,
        "after_ms": network_ms + after_ms,
        "speedup": (network_ms + before_ms) / (network_ms + after_ms),
    }


def fallback(model: SplitModel, seconds: float) -> dict[str, Any]:
    """Milliseconds of the placed model and of the same on one device: of each its fastest round.

    Where both devices are the CPU the two differ by the copy operators alone, far less than by chance; so those are
    timed by themselves.
    """
    gpu = torch.device("cuda", 0) if torch.cuda.is_available() else CPU
    devices = {Tag.GPU: gpu, Tag.CPU: CPU}
    graph = with_decode(model.graph, model.entry)
    operators = read_operators(graph, model.entry.image_shape)
    plan = make_plan(operators, OperatorList.read())
    placed = place(graph, plan, devices)
    images = torch.zeros((1, *model.entry.image_shape)).contiguous(memory_format=torch.channels_last).to(gpu)
    with torch.inference_mode():
        if gpu == CPU:
            copies = Copies(placed)
            copies.run(images, Limits())
            placed_s, copies_s = interleaved(seconds, lambda: placed(images, Limits()), copies.again)
            one_s = min(placed_s) - statistics.median(copies_s)
        else:
            on_one = place(graph, make_plan(operators, lambda _: Tag.GPU), devices)
            placed_s, ones_s = interleaved(
                seconds, lambda: placed(images, Limits()), lambda: copy_to(on_one(images, Limits()), CPU)
            )
            one_s = min(ones_s)
    return {
        "what": "fallback",
        "model": model.entry.name,
        "device": gpu.type,
        "copies": len(plan.copies),
        "copied_bytes": plan.copied_bytes,
        "placed_ms": 1e3 * min(placed_s),
        "one_device_ms": 1e3 * one_s,
        "overhead_percent": 100 * (min(placed_s) / one_s - 1),
    }


class Copies(fx.Interpreter):
    """Runs a placed graph and remembers what its copy operators were given."""

    def __init__(self, placed: fx.GraphModule) -> None:
        super().__init__(placed)
        self.given: list[tuple[Any, ...]] = []

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is copy_to:
            self.given.append(args)
        return super().call_function(target, args, kwargs)

    def again(self) -> None:
        """All copies once more."""
        for args in self.given:
            copy_to(*args)


def drawn_like(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Answers of these shapes: logits and offsets of an SSD, or predictions of YOLOv3."""
    generator = torch.Generator().manual_seed(0)

    def normal(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator)

    logits = outputs[0]
    anchors = logits.shape[1]
    found = torch.randint(anchors - 10, (OBJECTS,), generator=generator)
    around = (found[:, None] + torch.arange(10)).flatten()  # an object is seen by neighbouring anchors
    if len(outputs) == 2:
        drawn = normal(logits)
        drawn[..., 0] += 9.0
        drawn[:, around, 1 + torch.arange(len(around)) // 10] += 10.0
        return drawn, 0.5 * normal(outputs[1])
    drawn = 2 * normal(logits) - 6.0
    drawn[..., :4] = 0.5 * normal(logits[..., :4])
    drawn[:, around, 4] += 8.0
    drawn[:, around, 5 + torch.arange(len(around)) // 10] += 8.0
    return (drawn,)


def class_by_class(candidates: Candidates, limits: Limits) -> list[Detections]:
    """What ``suppress`` gives, as torchvision's SSD comes to it."""
    found = []
    for boxes, scores in zip(candidates.boxes, candidates.scores, strict=True):
        chosen: list[tuple[Tensor, Tensor, Tensor]] = []
        for label in range(scores.shape[1]):
            its = scores[:, label]
            kept = its > limits.score_threshold
            its, theirs = its[kept], boxes[kept]
            best, places = its.topk(min(candidates.most_of_a_class or len(its), len(its)))
            chosen.append((theirs[places], best, torch.full_like(best, label, dtype=torch.int64)))
        all_boxes, all_scores, labels = (torch.cat(parts) for parts in zip(*chosen, strict=True))
        kept = batched_nms(all_boxes, all_scores, labels, limits.nms_threshold)[: limits.max_detections]
        found.append(Detections(all_boxes[kept], all_scores[kept], labels[kept]))
    return found


def same(found: list[Detections], expected: list[Detections]) -> None:
    """Both ways find the same.

    Raises:
        AssertionError: they do not.
    """
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.scores, other.scores, rtol=0, atol=0)
        torch.testing.assert_close(one.boxes, other.boxes, rtol=0, atol=0)
        torch.testing.assert_close(one.labels, other.labels, rtol=0, atol=0)


def interleaved(seconds: float, *calls: Callable[[], object]) -> list[list[float]]:
    """Seconds of each call in each round, in which they take turns, for so long; a few rounds before that warm up."""
    samples: list[list[float]] = [[] for _ in calls]
    turn, end = 0, math.inf
    while turn < WARM_UP + LEAST_ROUNDS or time.perf_counter() < end:
        if turn == WARM_UP:
            end = time.perf_counter() + seconds
        for index in range(len(calls)):
            which = (index + turn) % len(calls)  # none always comes right behind the same one
            start = time.perf_counter()
            calls[which]()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn >= WARM_UP:
                samples[which].append(time.perf_counter() - start)
        turn += 1
    return samples
