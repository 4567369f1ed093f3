"""Times executions. An execution is a batch of one model, or batches of several models."""

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
WARM_UPS = 2  # executions that are not timed, because they choose kernels and pack weights
# How far the median may lie above the fastest sample: a share of it, plus seconds. Beyond, the machine was busy.
MAX_SPREAD, MAX_SPREAD_S = 0.15, 2e-4


class TimedModel(Protocol):
    """A model that is timed: a ``SplitModel``, or several models as one ``StackedModel``."""

    def blank_images(self, batch_size: int) -> Images:
        """Returns black images as the backbone takes them."""
        ...


class PixelModel:
    """Stands for a timed model with a backbone that normalises images itself.

    Args:
        size: height and width of the images.
        pixels: the form of the images.
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
        """The combination that ran most often without a graph; None if there is none."""

    def has_room(self, combination: Combination) -> bool:
        """Returns whether the combination can be recorded without evicting another one."""
        ...


class ExecutionRunner(Protocol):
    """Runs executions. It is a ``MergeRunner``, or several of them that run at the same time."""

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
    """Yields combinations that may run as one execution: several models of one size class (§II-B), fewest models first.

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


def time_execution(
    models: Mapping[str, TimedModel],
    runner: ExecutionRunner,
    combination: Combination,
    *,
    rounds: int,
    add_sample: Callable[[float], object],
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[None]:
    """Runs a combination ``WARM_UPS`` + ``rounds`` times on blank images, and yields after each run.

    Args:
        models: models by name, at least those of the combination.
        runner: runs the combination; it has loaded these models.
        combination: the models and batch sizes to run.
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
    """Returns whether half of the samples are about as fast as the fastest one. If not, the machine was busy.

    Args:
        samples_s: at least one sample, in seconds.
    """
    return statistics.median(samples_s) <= (1 + MAX_SPREAD) * min(samples_s) + MAX_SPREAD_S
