"""Contests of vision-specific operators and kernels: the sizes, the questions about the cases, and the answers."""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import MIN_BLOCKS, Estimate, estimate, maximum, minimum, ratio
from benchmarks.common.rows import in_us, measured
from benchmarks.common.short_calls import ShortCalls, no_wait
from benchmarks.common.turns import Contest
from benchmarks.vision_ops.cases import (
    ALIGN,
    ARGSORT,
    DECODE,
    HEAD,
    HEAVY,
    KERNELS,
    LABELLED,
    LIBRARY,
    NAIVE,
    OPERATORS,
    OURS,
    RIVALS,
    SUM,
    Case,
    align,
    argsort,
    decode,
    head,
    labelled,
    sums,
)

CPU, GPU = "cpu", "cuda"
MANY = 1000  # with so many values in a batch or more, an operator should be as fast as the library's
MAX_REGIONS = 1000  # the most regions of an image, because regions are few
MIN_PASS_S = 1e-3  # shorter calls are timed many at a time
HEADS = ((HEAD, 10.0), (HEAVY, 2.0))  # and their goals
MAKERS = {LABELLED: labelled, DECODE: decode, ALIGN: align}
KERNEL_MAKERS = {ARGSORT: argsort, SUM: sums}  # only on a GPU


@dataclass(frozen=True)
class Extent:
    """Says how much is measured.

    Attributes:
        sizes: numbers of boxes, regions or values in an image.
        images: numbers of images in a batch.
        max_values: the most values in a batch.
        max_naive_values: the most values in a batch for which the naive rival takes part.
        head_images: the number of images in a batch of a detector's head.
    """

    sizes: Sequence[int]
    images: Sequence[int]
    max_values: int
    max_naive_values: int
    head_images: int


QUICK = Extent(sizes=(10, 100, 1_000, 100_000), images=(1, 16), max_values=100_000, max_naive_values=100, head_images=4)
FULL = Extent(
    sizes=(10, 100, 300, 1_000, 3_000, 10_000, 100_000),
    images=(1, 4, 16, 64),
    max_values=640_000,
    max_naive_values=1_000,
    head_images=16,
)


@dataclass(frozen=True)
class Question:
    """A question about several cases, which a claim answers. The figure of the worst case is the answer.

    Attributes:
        name: the name of the claim.
        concerns: says whether the question is about a case.
        goal: the goal of the figure.
        is_ratio: whether the figure is the library's time divided by this package's. If not, it is this package's time
            minus the library's, in microseconds.
    """

    name: str
    concerns: Callable[[Case], bool]
    goal: float
    is_ratio: bool = True


class OperatorContest:
    """Lets the rivals of a case take turns.

    The naive rival takes part only in the first ``MIN_BLOCKS`` turns, because no claim is about it.

    Args:
        case: the case.
        device: the device on which the rivals run.
        questions: all questions. Those that are about the case give the contest's claims.

    Attributes:
        case, device: as given.
        contest: the contest of the rivals.
    """

    def __init__(self, case: Case, device: torch.device, questions: Sequence[Question]) -> None:
        self.case = case
        self.device = device
        wait = partial(torch.cuda.synchronize, device) if device.type == GPU else no_wait
        rivals = {name: call for name, call in case.rivals.items() if name != NAIVE}
        self._calls = ShortCalls(rivals, MIN_PASS_S, wait=wait)
        self._naive = ShortCalls({NAIVE: case.rivals[NAIVE]}, 0, wait=wait) if NAIVE in case.rivals else None
        asked = [question for question in questions if question.concerns(case)]
        name = f"{case.operator}, {device.type}, {case.images} x {case.size:,}"
        self.contest = Contest(name, self._turn, lambda _: [claim(question, [self]) for question in asked])

    def _turn(self, number: int) -> Mapping[str, float]:
        seconds = self._calls(number)
        if self._naive and number < MIN_BLOCKS:
            seconds |= self._naive(number)
        return seconds

    def advantage(self, is_ratio: bool) -> Estimate:
        """Returns the library's time divided by this package's.

        If not ``is_ratio``, returns this package's time minus the library's, in microseconds.
        """
        ours, library = (self.contest.figures[name] for name in (OURS, LIBRARY))
        if is_ratio:
            return ratio(library, ours)
        return estimate(lambda one, other: np.median(one - other, axis=-1), ours, library).times(1e6)

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each rival, in microseconds per call."""
        case = self.case
        what = {"what": "operator", "operator": case.operator, "device": self.device.type}
        size = {"images": case.images, "size": case.size}
        rows = []
        for name in (rival for rival in RIVALS if rival in case.rivals):
            usage = self._naive.usage if name == NAIVE and self._naive else self._calls.usage
            taken = measured(us=in_us(self.contest.figures[name]))
            rows.append({**what, **size, "rival": name, **taken, **usage.row(name)})
        return rows


def claim(question: Question, contests: Sequence[OperatorContest]) -> Claim:
    """Returns the answer to a question, as a claim. ``contests`` are those whose cases the question is about."""
    advantages = [contest.advantage(question.is_ratio) for contest in contests]
    turn_s = sum(contest.contest.turn_s for contest in contests)
    if question.is_ratio:
        return Claim(question.name, minimum(advantages), "x", question.goal, Direction.AT_LEAST, turn_s=turn_s)
    return Claim(
        question.name, maximum(advantages), "us", question.goal, Direction.AT_MOST, floor=-math.inf, turn_s=turn_s
    )


def has_kernels(device: torch.device) -> bool:
    """Returns whether this package's own kernels run on a device. They need a GPU and Triton."""
    return device.type == GPU and importlib.util.find_spec("triton") is not None


def questions_of(device: torch.device, extent: Extent) -> list[Question]:
    """Returns the questions about all cases on a device. CPU and GPU have different questions."""
    if device.type == GPU:
        return [
            Question(
                "box_nms of batches, GPU, times torchvision's, least",
                lambda case: case.operator == HEAD or (case.operator == LABELLED and case.images > 1),
                1.5,
            ),
            *(
                Question(f"{name}, GPU, 1,000 and more, times torch's, least", partial(_has, name, MANY), 1.0)
                for name in (KERNELS if has_kernels(device) else ())
            ),
        ]
    heads = [
        Question(f"{name}, {extent.head_images} images, CPU, times torchvision's loop", partial(_has, name, 0), goal)
        for name, goal in HEADS
    ]
    many = [
        Question(f"{name}, CPU, 1,000 and more, times the library's, least", partial(_has, name, MANY), 0.95)
        for name in OPERATORS
    ]
    few = [
        Question(f"{name}, CPU, fewer, over the library's, most", partial(_has_fewer, name, MANY), 25.0, is_ratio=False)
        for name in OPERATORS
    ]
    return [*heads, *(question for pair in zip(many, few, strict=True) for question in pair)]


def _has(operator: str, values: int, case: Case) -> bool:
    return case.operator == operator and case.values >= values


def _has_fewer(operator: str, values: int, case: Case) -> bool:
    return case.operator == operator and case.values < values


def cases(device: torch.device, extent: Extent) -> Iterator[Case]:
    """Makes the cases of all operators at all sizes, and on a GPU with Triton those of kernels."""
    makers = MAKERS | KERNEL_MAKERS if has_kernels(device) else MAKERS
    random = torch.Generator().manual_seed(0)
    for heavy in (False, True):
        yield head(device, random, extent.head_images, heavy)
    for images, size in itertools.product(extent.images, extent.sizes):
        for operator, make in makers.items():
            if images * size <= extent.max_values and (operator != ALIGN or (size <= MAX_REGIONS and images == 1)):
                yield without_slow_naive(make(device, random, images, size), extent)


def without_slow_naive(case: Case, extent: Extent) -> Case:
    """Returns the case. Leaves out its naive rival if the case has more than ``max_naive_values`` values."""
    if case.values <= extent.max_naive_values:
        return case
    return replace(case, rivals={name: case.rivals[name] for name in (OURS, LIBRARY)})
