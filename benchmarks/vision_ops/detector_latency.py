"""Times detectors end to end on one image: the network, and the suppression that finds objects in its outputs.

The result has the form of Table 4 of paper 004. There are two suppressions. Before: like torchvision, image by image
and class by class (``SSD.postprocess_detections``). After: the whole batch and all classes at once (``suppress``). An
untrained network gives the same scores for every anchor. So the outputs that are decoded are drawn like those of a
trained detector: background nearly everywhere, objects at some anchors and their neighbours. A turn runs the network
once, and its time is added to that of each suppression.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import batched_nms

from benchmarks.common.claim import Claim
from benchmarks.common.estimate import Samples, estimate
from benchmarks.common.rows import in_ms, measured
from benchmarks.common.turns import Contest, rotated
from benchmarks.common.usage import Usage
from split_infer_ros.models.candidates import Candidates, SuppressOverlaps
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.operator_placement.placed_graph import copy_to
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec

PAPERS_NAMES = {"ssdlite320": "SSD_MobileNet", "ssd_resnet50": "SSD_ResNet50", "yolov3": "Yolov3"}  # of Table 4
PAPERS_GAINS = {  # of Table 4, on the GPUs of three boards
    "ssdlite320": "1.95 to 4.5 x",
    "ssd_resnet50": "1.32 to 1.48 x",
    "yolov3": "2.44 to 5.86 x",
}
LIMITS = Limits(0.01, 0.45, 100)  # GluonCV's, from which the paper's models come
OBJECTS = 12
WARM_UP = 2  # convolutions are laid out for speed at the second call
CPU = torch.device("cpu")
NETWORK, BEFORE, AFTER = "network", "torchvision's suppression", "ours"

Found = tuple[Tensor, Tensor, Tensor]
"""Boxes, scores and labels of an image."""


class DetectorContest:
    """Times a detector on one image: its network until the outputs are on the CPU, and each of the two suppressions.

    Args:
        name: the model's name in the catalogue.

    Attributes:
        contest: the contest of the network and the two suppressions.

    Raises:
        AssertionError: the two suppressions find different objects.
    """

    def __init__(self, name: str) -> None:
        model = load_model(ModelSpec(name, "none", "auto"))
        self._device = model.device
        self._name = name
        self._usage = Usage()
        images = torch.zeros((1, *model.entry.image_shape)).contiguous(memory_format=torch.channels_last)
        images = images.to(model.device)
        backbone, head = model.backbone("output"), model.head("output")  # the second puts the answers in order
        assert isinstance(model.entry.decode, SuppressOverlaps)
        decode, candidates = model.entry.decode, model.entry.decode.candidates

        def network() -> tuple[Tensor, ...]:
            outputs: tuple[Tensor, ...] = head(*copy_to(backbone(images), CPU))
            return outputs

        with torch.inference_mode():
            drawn = drawn_like(network())
            for _ in range(WARM_UP - 1):
                network()
            same(decode(drawn, LIMITS), class_by_class(candidates(drawn), LIMITS))
        self._calls: dict[str, Callable[[], object]] = {
            NETWORK: network,
            BEFORE: lambda: class_by_class(candidates(drawn), LIMITS),
            AFTER: lambda: decode(drawn, LIMITS),
        }
        self.contest = Contest(f"{PAPERS_NAMES[name]}, one image", self._turn, lambda _: self.claims())

    def _turn(self, number: int) -> dict[str, float]:
        taken = {}
        for name in rotated(list(self._calls), number):
            with torch.inference_mode(), self._usage.of(name):
                begin = time.perf_counter()
                self._calls[name]()  # its results are on the CPU: nothing is left to wait for
                taken[name] = time.perf_counter() - begin
        return taken

    def claims(self) -> list[Claim]:
        """Returns the claim: how many times faster network and suppression are with this package's suppression."""
        figures = self.contest.figures
        gain = estimate(
            lambda network, before, after: np.median((network + before) / (network + after), axis=-1),
            *(figures[name] for name in (NETWORK, BEFORE, AFTER)),
        )
        name = f"{self.contest.name}, times faster than with torchvision's suppression"
        return [Claim(name, gain, "x", 1.0, turn_s=self.contest.turn_s, paper=PAPERS_GAINS[self._name])]

    def totals_ms(self) -> dict[str, list[float]]:
        """Returns the milliseconds of network and suppression together in each turn, by suppression."""
        figures = {name: np.asarray(found) for name, found in self.contest.figures.items()}
        network: Samples = figures[NETWORK]
        return {name: (1e3 * (network + figures[name])).tolist() for name in (BEFORE, AFTER)}

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for the network and a row for each suppression, in milliseconds."""
        what = {"what": "detector", "model": self._name, "device": str(self._device)}
        return [
            {**what, "rival": name, **measured(ms=in_ms(found)), **self._usage.row(name)}
            for name, found in self.contest.figures.items()
        ]


def drawn_like(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Returns random outputs like those of a trained detector, with the shapes of ``outputs``.

    They are logits and offsets of an SSD, or predictions of YOLOv3. There are ``OBJECTS`` objects.
    """
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


def class_by_class(candidates: Candidates, limits: Limits) -> list[Found]:
    """Suppresses overlaps like torchvision's SSD: image by image and class by class.

    The results equal those of ``suppress``. The tensors stay on the device of the candidates. ``limits`` decide which
    detections are kept.
    """
    found: list[Found] = []
    for boxes, scores in zip(candidates.boxes, candidates.scores, strict=True):
        chosen: list[tuple[Tensor, Tensor, Tensor]] = []
        for label in range(scores.shape[1]):
            its = scores[:, label]
            kept = its > limits.score_threshold
            its, theirs = its[kept], boxes[kept]
            best, places = its.topk(min(candidates.max_per_class or len(its), len(its)))
            chosen.append((theirs[places], best, torch.full_like(best, label, dtype=torch.int64)))
        all_boxes, all_scores, labels = (torch.cat(parts) for parts in zip(*chosen, strict=True))
        kept = batched_nms(all_boxes, all_scores, labels, limits.nms_threshold)[: limits.max_detections]
        found.append((all_boxes[kept], all_scores[kept], labels[kept]))
    return found


def same(found: list[Detections], expected: list[Found]) -> None:
    """Checks that both suppressions find the same boxes, scores and labels, bit for bit.

    Raises:
        AssertionError: they differ.
    """
    for one, other in zip(found, expected, strict=True):
        for mine, theirs in zip((one.boxes, one.scores, one.labels), other, strict=True):
            np.testing.assert_array_equal(mine, theirs.numpy())
