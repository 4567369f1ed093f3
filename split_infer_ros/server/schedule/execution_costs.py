"""The measured costs of executions: of batches of one model, and of fused batches of several models."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from split_infer_ros.server.schedule.graph_sizes import padded_size

FUSED_BATCH_SIZES = (1, 2)  # images of each model when several models are measured as one execution
NOISE_MARGIN = 0.03  # relative; repeated measurements differ by this much, so a smaller gain does not count

Combination = tuple[tuple[str, int], ...]  # models and the number of images of each, sorted by name


def combination_of(counts: Mapping[str, int]) -> Combination:
    """Returns the hashable form of one execution: its models and the number of images of each, sorted by name."""
    return tuple(sorted(counts.items()))


@dataclass(frozen=True, slots=True)
class StackCosts:
    """The costs of a stack: models of one architecture that run as one network.

    Attributes:
        members: the names of the models.
        seconds: the seconds of one execution, by the number of images of each member; at least one size.
    """

    members: tuple[str, ...]
    seconds: Mapping[int, float]

    @property
    def best_image_s(self) -> float:
        """The lowest cost of one image if every member has images, in seconds."""
        return min(seconds / (size * len(self.members)) for size, seconds in self.seconds.items())

    def execution_s(self, counts: Mapping[str, int]) -> float:
        """Returns the seconds of the fastest measured execution that serves these batches; infinite if none does.

        Args:
            counts: the number of images of each model.
        """
        size = max(counts.values(), default=0)
        if not size or not counts.keys() <= set(self.members):
            return math.inf
        return min((seconds for found, seconds in self.seconds.items() if found >= size), default=math.inf)


@dataclass(frozen=True)
class ExecutionCosts:
    """Costs of the loaded models, as far as they are known.

    Attributes:
        parameters: the number of parameters of each model.
        alone_s: for each model, the seconds of a batch by batch size; at least one size for each model.
        fused_s: the seconds of fused batches of several models by combination, as far as they were measured.
        stacks: the costs of stacks by name, as far as they were measured. A model is in at most one stack.
        pads: whether a batch is padded to the size of a recorded graph, and therefore costs what that size costs.

    Raises:
        ValueError: a model has no costs, or a cost is not a positive number of seconds.
    """

    parameters: Mapping[str, int]
    alone_s: Mapping[str, Mapping[int, float]]
    fused_s: Mapping[Combination, float] = field(default_factory=dict)
    stacks: Mapping[str, StackCosts] = field(default_factory=dict)
    pads: bool = False

    def __post_init__(self) -> None:
        for model, measured in self.alone_s.items():
            if not measured or not all(size > 0 and 0 < seconds < math.inf for size, seconds in measured.items()):
                raise ValueError(f"Costs of {model} are {dict(measured)}; each batch size takes some seconds.")

    def knows(self, model: str) -> bool:
        """Returns whether costs of the model are known."""
        return model in self.alone_s

    def batch_s(self, model: str, count: int) -> float:
        """Returns the seconds of one batch; 0 if no costs of the model are known.

        The cost of a size that was not measured is interpolated linearly between its neighbours. Beyond the largest
        measured size, the cost grows in proportion.
        """
        cached = self._batches_s.get(model)  # cached, because the scheduler often asks for the same sizes
        if cached is None:
            return 0.0
        seconds = cached.get(count)
        if seconds is None:
            size = padded_size(count) if self.pads else count
            seconds = cached[count] = _interpolated_s(self.alone_s[model], size)
        return seconds

    def best_batch_size(self, model: str, max_batch_size: int) -> int:
        """Returns the smallest batch size that costs the least for each image, within ``NOISE_MARGIN``.

        A larger batch would save nothing, and would delay results. If no costs of the model are known, the result is
        ``max_batch_size``.
        """
        cached = self._best_batch_sizes.get(model)
        if cached is None:
            return max_batch_size
        best = cached.get(max_batch_size)
        if best is None:
            image_s = {size: self.batch_s(model, size) / size for size in range(1, max_batch_size + 1)}
            max_image_s = (1 + NOISE_MARGIN) * min(image_s.values())
            best = cached[max_batch_size] = next(size for size, seconds in image_s.items() if seconds <= max_image_s)
        return best

    def image_s(self, model: str) -> float:
        """Returns the cost of one image in seconds: alone, or at best in the model's stack."""
        alone_s = self.batch_s(model, 1)
        stack = self.stack_of(model)
        return min(alone_s, self.stacks[stack].best_image_s) if stack else alone_s

    def stack_of(self, model: str) -> str:
        """Returns the name of the model's stack; empty if the model is in no stack."""
        return self._stack_names.get(model, "")

    def execution_s(self, counts: Mapping[str, int]) -> float:
        """Returns the seconds of one execution of these batches, if each model computes its batch by its own network.

        If the combination was not measured, the result is an estimate. It uses the gain from fusing the same models at
        other batch sizes.

        Args:
            counts: the number of images of each model.
        """
        if self.pads:
            counts = {model: padded_size(count, len(counts)) for model, count in counts.items()}
        apart_s = 0.0
        for model, count in counts.items():
            apart_s += self.batch_s(model, count)
        if len(counts) < 2:
            return apart_s
        measured_s = self._fused_s.get(frozenset(counts.items()))
        if measured_s is not None:
            return measured_s
        return apart_s * self._fusion_ratios.get(frozenset(counts), 1.0)

    def shortest_s(self, counts: Mapping[str, int]) -> float:
        """Returns the seconds of these batches in the faster way: one after the other, or in a stack.

        Args:
            counts: the number of images of each model.
        """
        apart_s = sum(self.batch_s(model, count) for model, count in counts.items())
        return min([apart_s, *(stack.execution_s(counts) for stack in self.stacks.values())])

    def is_small(self, model: str) -> bool:
        """Returns whether the model has fewer parameters than the mean of the loaded models (§II-B)."""
        return model in self._small

    @cached_property
    def _small(self) -> frozenset[str]:
        mean = statistics.fmean(self.parameters.values() or [0])
        return frozenset(model for model, count in self.parameters.items() if count < mean)

    @cached_property
    def _stack_names(self) -> Mapping[str, str]:
        return {model: name for name, stack in self.stacks.items() for model in stack.members}

    @cached_property
    def _batches_s(self) -> Mapping[str, dict[int, float]]:
        return {model: {} for model in self.alone_s}

    @cached_property
    def _best_batch_sizes(self) -> Mapping[str, dict[int, int]]:
        return {model: {} for model in self.alone_s}

    @cached_property
    def _fused_s(self) -> Mapping[frozenset[tuple[str, int]], float]:
        return {frozenset(combination): seconds for combination, seconds in self.fused_s.items()}

    @cached_property
    def _fusion_ratios(self) -> Mapping[frozenset[str], float]:
        """For each set of models, the median ratio of the measured fused cost to the cost of separate batches."""
        ratios: dict[frozenset[str], list[float]] = {}
        for combination, seconds in self.fused_s.items():
            apart_s = sum(self.batch_s(model, count) for model, count in combination)
            ratios.setdefault(frozenset(model for model, _ in combination), []).append(seconds / apart_s)
        return {models: statistics.median(values) for models, values in ratios.items()}


def _interpolated_s(measured: Mapping[int, float], count: int) -> float:
    if count in measured:
        return measured[count]
    sizes = sorted(measured)
    index = bisect.bisect(sizes, count)
    if index == len(sizes):
        return measured[sizes[-1]] * count / sizes[-1]
    below, above = (sizes[index - 1], sizes[index]) if index else (0, sizes[0])
    below_s = measured[below] if below else 0.0
    return below_s + (measured[above] - below_s) * (count - below) / (above - below)


def fusable_combinations(parameters: Mapping[str, int]) -> Iterable[Combination]:
    """Yields combinations of several models that may run as one execution, those of the fewest models first.

    The models of a combination are either all small, or all not small (§II-B).

    Args:
        parameters: the number of parameters of each loaded model.
    """
    if not parameters:
        return
    is_small = ExecutionCosts(parameters, {}).is_small
    size_classes = [
        [name for name in parameters if is_small(name)],
        [name for name in parameters if not is_small(name)],
    ]
    for num_models in range(2, len(parameters) + 1):
        for size_class in size_classes:
            for names in itertools.combinations(sorted(size_class), num_models):
                for batch_size in FUSED_BATCH_SIZES:
                    yield combination_of(dict.fromkeys(names, batch_size))
