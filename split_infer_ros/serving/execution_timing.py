"""Measures what the scheduler needs to know: batches alone, and models as one execution."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from split_infer_ros.serving.execution_costs import ExecutionCosts, Group, group
from split_infer_ros.serving.merge_runner import Inputs, Outputs
from split_infer_ros.split.model import SplitModel

SIZES = (1, 2, 4, 8)
TOGETHER = (1, 2)  # images of each model that are measured as one execution
WARM_UPS = 2  # kernels are chosen, weights are packed
DOUBT, DOUBT_S = 0.15, 2e-4  # a median that lies further above the fastest sample is no machine's at rest


class Recordings(Protocol):
    """What an engine has recorded."""

    @property
    def wanted(self) -> Group | None:
        """A combination that ran and is not recorded."""

    def has_room(self, combination: Group) -> bool:
        """Whether it can be recorded, and no other has to go for it."""
        ...


class Runner(Protocol):
    """An engine, or several."""

    @property
    def graphs(self) -> Recordings | None:
        """What is recorded; None where nothing is."""

    def prepare(self, inputs: Inputs) -> None:
        """Have that execution recorded, where executions are."""
        ...

    def run(self, inputs: Inputs) -> Outputs:
        """One execution, to its end."""
        ...


def measure(
    models: Mapping[str, SplitModel],
    engine: Runner,
    sizes: Sequence[int] = SIZES,
    rounds: int = 5,
    fuse: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> ExecutionCosts:
    """Medians; every combination of models of one class (§II-B) is measured as one, with one image each and with two.

    Args:
        models: by name; their inputs are blank.
        engine: that has them.
        sizes: of batches of one model.
        rounds: samples of each.
        fuse: whether combinations are of interest.
        clock: seconds.
    """
    parameters = {name: model.parameters for name, model in models.items()}
    fused = list(fusable(parameters)) if fuse else []
    samples: dict[Group, list[float]] = {}
    for size in sizes:  # models take turns, so that each finds the caches as another left them
        turns = []
        for name in models:
            found = samples[group({name: size})] = []
            turns.append(sample(models, engine, group({name: size}), rounds, found.append, clock))
        for _ in zip(*turns, strict=True):
            pass
    for combination in fused:
        samples[combination] = []
        for _ in sample(models, engine, combination, rounds, samples[combination].append, clock):
            pass
    medians = {combination: statistics.median(found) for combination, found in samples.items()}
    return ExecutionCosts(
        parameters,
        {name: {size: medians[group({name: size})] for size in sizes} for name in models},
        {combination: medians[combination] for combination in fused},
    )


def fusable(parameters: Mapping[str, int]) -> Iterable[Group]:
    """What may become one execution: several models of one class, the fewest first.

    Args:
        parameters: of each model that is loaded, how many.
    """
    if not parameters:
        return
    small = ExecutionCosts(parameters, {}).is_small
    classes = [[name for name in parameters if small(name)], [name for name in parameters if not small(name)]]
    for length in range(2, len(parameters) + 1):
        for of_class in classes:
            for names in itertools.combinations(sorted(of_class), length):
                for size in TOGETHER:
                    yield group(dict.fromkeys(names, size))


def sample(
    models: Mapping[str, SplitModel],
    engine: Runner,
    combination: Group,
    rounds: int,
    take: Callable[[float], object],
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[None]:
    """Execute a combination so often, giving way after each time; ``take`` gets the seconds of those that count."""
    inputs = {name: blank(models[name], size) for name, size in combination}
    for turn in range(WARM_UPS + rounds):
        if not turn:
            engine.prepare(inputs)
        begin = clock()
        engine.run(inputs)
        seconds = clock() - begin
        if turn >= WARM_UPS:
            take(seconds)
        yield


def agree(samples_s: Sequence[float]) -> bool:
    """Whether half of the samples are about as fast as the fastest; on a busy machine they are not.

    Args:
        samples_s: seconds, at least one.
    """
    return statistics.median(samples_s) <= (1 + DOUBT) * min(samples_s) + DOUBT_S


def blank(model: SplitModel, count: int) -> Tensor:
    """A batch of black images, on the model's device."""
    images = torch.zeros((count, *model.entry.image_shape), device=model.device, dtype=model.dtype)
    return images.contiguous(memory_format=torch.channels_last)
