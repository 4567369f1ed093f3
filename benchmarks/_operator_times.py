"""Contests of vision-specific operators: which sizes there are, what is asked of each, and what came of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from _operator_forms import (
    ALIGN,
    ARGSORT,
    DECODE,
    FORMS,
    HEAD,
    HEAVY,
    LABELLED,
    LIBRARY,
    NAIVE,
    OPERATORS,
    OURS,
    SUM,
    Case,
    align,
    argsort,
    decode,
    head,
    labelled,
    sums,
)
from _rows import in_us, measured
from _short_calls import ShortCalls, no_wait

from split_infer_ros.telemetry.claim import Claim, Direction
from split_infer_ros.telemetry.estimate import MIN_BLOCKS, Estimate, estimate, maximum, minimum, ratio
from split_infer_ros.telemetry.turns import Contest

CPU, GPU = "cpu", "cuda"
MANY = 1000  # values in all images from which an operator is to be as fast as the library's
MAX_REGIONS = 1000  # an image; regions are few
PASS_S = 1e-3  # shorter calls are timed many at once
HEADS = ((HEAD, 10.0), (HEAVY, 2.0))  # with their goals
MAKERS = {LABELLED: labelled, ARGSORT: argsort, SUM: sums, DECODE: decode, ALIGN: align}


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Attributes:
        sizes: of an image.
        images: given at once.
        values: at most so many in all.
        naive: values up to which the naive form takes part.
        heads: images of a detector's head.
    """

    sizes: Sequence[int]
    images: Sequence[int]
    values: int
    naive: int
    heads: int


QUICK = Extent((10, 100, 1_000, 100_000), (1, 16), 100_000, 100, 4)
FULL = Extent((10, 100, 300, 1_000, 3_000, 10_000, 100_000), (1, 4, 16, 64), 640_000, 1_000, 16)


@dataclass(frozen=True)
class Question:
    """What is asked of several cases together: the worst of them counts.

    Attributes:
        name: of the claim.
        concerns: whether a case is one of them.
        goal: for the library's time divided by ours, or in microseconds for what ours takes more.
        is_ratio: which of the two.
    """

    name: str
    concerns: Callable[[Case], bool]
    goal: float
    is_ratio: bool = True


class OperatorContest:
    """A case whose rivals take turns. The naive form has only the first turns: nothing is claimed of it."""

    def __init__(self, case: Case, device: torch.device, questions: Sequence[Question]) -> None:
        self.case = case
        self.device = device
        wait = partial(torch.cuda.synchronize, device) if device.type == GPU else no_wait
        rivals = {name: form for name, form in case.forms.items() if name != NAIVE}
        self._calls = ShortCalls(rivals, PASS_S, wait=wait)
        self._naive = ShortCalls({NAIVE: case.forms[NAIVE]}, 0, wait=wait) if NAIVE in case.forms else None
        asked = [question for question in questions if question.concerns(case)]
        name = f"{case.operator}, {device.type}, {case.images} x {case.size:,}"
        self.contest = Contest(name, self._turn, lambda _: [claim(question, [self]) for question in asked])

    def _turn(self, number: int) -> Mapping[str, float]:
        found = self._calls(number)
        if self._naive and number < MIN_BLOCKS:
            found |= self._naive(number)
        return found

    def found(self, is_ratio: bool) -> Estimate:
        """The library's time divided by ours, or the microseconds that ours takes more."""
        ours, library = (self.contest.figures[name] for name in (OURS, LIBRARY))
        if is_ratio:
            return ratio(library, ours)
        return estimate(lambda one, other: np.median(one - other, axis=-1), ours, library).times(1e6)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each form, in microseconds a call."""
        case = self.case
        what = {"what": "operator", "operator": case.operator, "device": self.device.type}
        size = {"images": case.images, "size": case.size}
        rows = []
        for name in (each for each in FORMS if each in case.forms):
            usage = self._naive.usage if name == NAIVE and self._naive else self._calls.usage
            taken = measured(us=in_us(self.contest.figures[name]))
            rows.append({**what, **size, "rival": name, **taken, **usage.row(name)})
        return rows


def claim(question: Question, contests: Sequence[OperatorContest]) -> Claim:
    """The answer to a question by contests that it concerns."""
    found = [each.found(question.is_ratio) for each in contests]
    turn_s = sum(each.contest.turn_s for each in contests)
    if question.is_ratio:
        return Claim(question.name, minimum(found), "x", question.goal, Direction.AT_LEAST, turn_s=turn_s)
    return Claim(question.name, maximum(found), "us", question.goal, Direction.AT_MOST, floor=-math.inf, turn_s=turn_s)


def questions_of(device: torch.device, extent: Extent) -> list[Question]:
    """What is asked of all cases on a device. CPU and GPU differ."""
    if device.type == GPU:
        return [
            Question(
                "box_nms of batches, GPU, times torchvision's, least",
                lambda case: case.operator == HEAD or (case.operator == LABELLED and case.images > 1),
                1.5,
            ),
            *(
                Question(f"{name}, GPU, 1,000 and more, times torch's, least", partial(_has, name, MANY), 1.0)
                for name in (SUM, ARGSORT)
            ),
        ]
    heads = [
        Question(f"{name}, {extent.heads} images, CPU, times torchvision's loop", partial(_has, name, 0), goal)
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
    """All operators at all sizes."""
    random = torch.Generator().manual_seed(0)
    for heavy in (False, True):
        yield head(device, random, extent.heads, heavy)
    for images, size in itertools.product(extent.images, extent.sizes):
        for operator, make in MAKERS.items():
            if images * size <= extent.values and (operator != ALIGN or (size <= MAX_REGIONS and images == 1)):
                yield affordable(make(device, random, images, size), extent)


def affordable(case: Case, extent: Extent) -> Case:
    """The case, without its naive form where that would take for ever."""
    if case.values <= extent.naive:
        return case
    return Case(case.operator, case.images, case.size, {name: case.forms[name] for name in (OURS, LIBRARY)})
