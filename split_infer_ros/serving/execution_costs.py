"""What executions cost, by measurement: batches of a model alone, and batches of several models as one."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

NO_MORE = 0.03  # a part of the time by which measurements differ anyway

Group = tuple[tuple[str, int], ...]  # models and how many requests of each, sorted by name


def group(counts: Mapping[str, int]) -> Group:
    """The same as a key."""
    return tuple(sorted(counts.items()))


@dataclass(frozen=True)
class ExecutionCosts:
    """Costs of the models that are loaded.

    Attributes:
        parameters: of each model, how many.
        alone_s: of each model, seconds of a batch by its size; at least that of 1.
        fused_s: seconds of several models' batches as one execution, as far as they were measured.
    """

    parameters: Mapping[str, int]
    alone_s: Mapping[str, Mapping[int, float]]
    fused_s: Mapping[Group, float] = field(default_factory=dict)

    def batch_s(self, model: str, count: int) -> float:
        """Seconds of one batch: measured, or on the line between its neighbours; beyond the largest in proportion."""
        known = self._batches_s[model]
        seconds = known.get(count)
        if seconds is None:  # asked for again and again by the scheduler
            seconds = known[count] = _between(self.alone_s[model], count)
        return seconds

    def best_size(self, model: str, most: int) -> int:
        """The batch that costs least an image; of those that cost no more than ``NO_MORE`` besides, the smallest.

        A larger one would save nothing, and keep those that are done waiting for the others.
        """
        known = self._best_sizes[model]
        size = known.get(most)
        if size is None:
            each = {count: self.batch_s(model, count) / count for count in range(1, most + 1)}
            enough = (1 + NO_MORE) * min(each.values())
            size = known[most] = next(count for count, image_s in each.items() if image_s <= enough)
        return size

    def best_image_s(self, model: str) -> float:
        """Seconds of an image in the best of the batches that were measured."""
        return min(seconds / size for size, seconds in self.alone_s[model].items())

    def execution_s(self, counts: Mapping[str, int]) -> float:
        """Seconds of one execution of these batches: measured, or estimated from what fusing gained elsewhere."""
        apart_s = 0.0
        for model, count in counts.items():
            apart_s += self.batch_s(model, count)
        if len(counts) < 2:
            return apart_s
        measured = self._fused_s.get(frozenset(counts.items()))
        return apart_s * self._gains.get(frozenset(counts), 1.0) if measured is None else measured

    def is_small(self, model: str) -> bool:
        """Fewer parameters than the mean of the models that are loaded (§II-B)."""
        return model in self._small

    @cached_property
    def _small(self) -> frozenset[str]:
        mean = statistics.fmean(self.parameters.values())
        return frozenset(model for model, count in self.parameters.items() if count < mean)

    @cached_property
    def _batches_s(self) -> Mapping[str, dict[int, float]]:
        return {model: {} for model in self.alone_s}

    @cached_property
    def _best_sizes(self) -> Mapping[str, dict[int, int]]:
        return {model: {} for model in self.alone_s}

    @cached_property
    def _fused_s(self) -> Mapping[frozenset[tuple[str, int]], float]:
        return {frozenset(counts): seconds for counts, seconds in self.fused_s.items()}

    @cached_property
    def _gains(self) -> Mapping[frozenset[str], float]:
        """What a fused execution of some models takes, in parts of the same ones after each other: the median."""
        ratios: dict[frozenset[str], list[float]] = {}
        for counts, seconds in self.fused_s.items():
            apart = sum(self.batch_s(model, count) for model, count in counts)
            ratios.setdefault(frozenset(model for model, _ in counts), []).append(seconds / apart)
        return {models: statistics.median(found) for models, found in ratios.items()}

    def __post_init__(self) -> None:
        for model, measured in self.alone_s.items():
            if not measured or not all(size > 0 and 0 < seconds < math.inf for size, seconds in measured.items()):
                raise ValueError(f"Costs of {model} are {dict(measured)}; each batch size takes some seconds.")


def _between(measured: Mapping[int, float], count: int) -> float:
    if count in measured:
        return measured[count]
    sizes = sorted(measured)
    place = bisect.bisect(sizes, count)
    if place == len(sizes):
        return measured[sizes[-1]] * count / sizes[-1]
    below, above = (sizes[place - 1], sizes[place]) if place else (0, sizes[0])
    low = measured[below] if below else 0.0
    return low + (measured[above] - low) * (count - below) / (above - below)
