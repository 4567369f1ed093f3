"""Times executions: batches of one model, and batches of several models as one execution."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from split_infer_ros.engines.compute import Images
from split_infer_ros.images.pixel_input import PixelInput
from split_infer_ros.server.execution.merge_runner import Inputs, Outputs
from split_infer_ros.server.schedule.execution_costs import Combination, ExecutionCosts, combination_of

FUSED_BATCH_SIZES = (1, 2)  # images of each model when several models are timed as one execution
WARM_UPS = 2  # executions that do not count: kernels are chosen and weights are packed
MAX_SPREAD, MAX_SPREAD_S = 0.15, 2e-4  # of a median above the fastest sample; beyond, the machine was busy


class TimedModel(Protocol):
    """A model whose executions are timed: a ``SplitModel``, or several as one ``StackedModel``."""

    def blank_images(self, batch_size: int) -> Images:
        """Returns black images as the backbone takes them."""
        ...


class PixelModel:
    """A model whose backbone normalises images itself, as it is timed.

    Args:
        size: height and width of its images.
        pixels: their form.
    """

    def __init__(self, size: tuple[int, int], pixels: PixelInput) -> None:
        self._size, self._pixels = size, pixels

    def blank_images(self, batch_size: int) -> Images:
        """Returns black images as the backbone takes them."""
        return self._pixels.blank((batch_size, *self._size))


class GraphStore(Protocol):
    """The recorded graphs of a runner."""

    @property
    def most_missed(self) -> Combination | None:
        """The combination that ran most often without being recorded; None if there is none."""

    def has_room(self, combination: Combination) -> bool:
        """Returns whether the combination can be recorded without evicting another one."""
        ...


class ExecutionRunner(Protocol):
    """Runs executions; a ``MergeRunner``, or several of them at once."""

    @property
    def graphs(self) -> GraphStore | None:
        """The recorded graphs; None if nothing is recorded."""

    def prepare(self, inputs: Inputs) -> None:
        """Records the execution, if executions are recorded."""
        ...

    def run(self, inputs: Inputs) -> Outputs:
        """Runs one execution to its end."""
        ...


def fusable_combinations(parameters: Mapping[str, int]) -> Iterable[Combination]:
    """Yields what may run as one execution: several models of one size class (§II-B), the fewest models first.

    Args:
        parameters: the number of parameters of each model that is loaded.
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


def time_execution(
    models: Mapping[str, TimedModel],
    runner: ExecutionRunner,
    combination: Combination,
    *,
    rounds: int,
    add_sample: Callable[[float], object],
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[None]:
    """Runs a combination ``WARM_UPS`` + ``rounds`` times on blank images, and yields after each time.

    Args:
        models: by name, at least those of the combination.
        runner: has these models loaded.
        combination: what is run.
        rounds: how many executions are timed.
        add_sample: receives the seconds of each timed execution.
        clock: returns seconds.
    """
    inputs = {name: models[name].blank_images(size) for name, size in combination}
    runner.prepare(inputs)
    for number in range(WARM_UPS + rounds):
        begin = clock()
        runner.run(inputs)
        seconds = clock() - begin
        if number >= WARM_UPS:
            add_sample(seconds)
        yield


def samples_agree(samples_s: Sequence[float]) -> bool:
    """Returns whether half of the samples are about as fast as the fastest one. On a busy machine they are not.

    Args:
        samples_s: at least one sample, in seconds.
    """
    return statistics.median(samples_s) <= (1 + MAX_SPREAD) * min(samples_s) + MAX_SPREAD_S
