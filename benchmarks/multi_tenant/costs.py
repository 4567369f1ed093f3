"""Measures what executions cost.

Before requests come, it measures batches, fused models and stacks. In turns, it measures what fusing costs, and the
highest possible throughput (the bound).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import ratio
from benchmarks.common.turns import Contest, rotated
from benchmarks.multi_tenant.load import Load
from split_infer_ros.runtime.num_threads import max_threads
from split_infer_ros.server.costs.cost_measurer import MAX_ROUNDS, MIN_ROUNDS, ExecutionRunner, time_execution
from split_infer_ros.server.costs.kept_costs import samples_agree
from split_infer_ros.server.costs.table_model import BlankImages
from split_infer_ros.server.execution.concurrent_lanes import ConcurrentLanes
from split_infer_ros.server.execution.merge_runner import MergeRunner
from split_infer_ros.server.schedule.execution_costs import (
    NOISE_MARGIN,
    Combination,
    ExecutionCosts,
    StackCosts,
    combination_of,
    fusable_combinations,
)
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.graph_sizes import padded_size

FUSED, APART = "fused", "one after the other"


def measure_modes(load: Load, sizes: Sequence[int], window: int = 1) -> ExecutionModes:
    """Measures costs on all cores or on the GPU, and on lanes if there are several cores.

    Args:
        load: the models and their stacks.
        sizes: the batch sizes to measure.
        window: from how many waiting requests the scheduler chooses. On a GPU, graphs are recorded for batches up to
            this size, and these batches are measured too.
    """
    runner = load.new_runner()
    if runner.graphs is not None:
        sizes = sorted({*sizes, *(padded_size(count) for count in range(1, window + 1))})
    whole = measure_costs(load, runner, sizes, window=window)
    runner.close()
    if runner.is_asynchronous or max_threads() == 1:
        return ExecutionModes(whole)
    lanes = ConcurrentLanes([load.new_runner(num_threads=1) for _ in range(max_threads())])
    lane = measure_costs(load, lanes, sizes, fuse=False, window=window)
    lanes.close()
    return ExecutionModes(whole, max_threads(), lane)


def measure_costs(
    load: Load, runner: ExecutionRunner, sizes: Sequence[int], *, fuse: bool = True, window: int = 1
) -> ExecutionCosts:
    """Measures the costs of executions, which take turns as they do while requests are served.

    Each cost is a median in seconds. An execution is timed until its samples agree, ``MAX_ROUNDS`` times at most.

    Args:
        load: the models and their stacks.
        runner: runs the executions. It has loaded the models and stacks.
        sizes: the sizes of batches of one model.
        fuse: whether combinations of models are measured too.
        window: from how many waiting requests the scheduler chooses. Stacks are measured with as many images of each
            model as the window can hold.
    """
    parameters = {name: model.network.num_parameters() for name, model in load.models.items()}
    fused = list(fusable_combinations(parameters)) if fuse else []
    batches = [combination_of({name: size}) for size in sizes for name in load.models]
    stack_sizes = {name: range(1, math.ceil(window / len(stack.members)) + 1) for name, stack in load.stacks.items()}
    stacked = [combination_of({name: size}) for name, found in stack_sizes.items() for size in found]
    blank_images = {name: timed.blank_images for name, timed in [*load.models.items(), *load.stacks.items()]}
    combinations = [*batches, *fused, *stacked]
    if runner.graphs is None:
        seconds = _in_turns(blank_images, runner, combinations)
    else:  # one by one, because each needs its graph, and memory may not suffice for all graphs
        alone = [_in_turns(blank_images, runner, [combination]) for combination in combinations]
        seconds = {combination: found for each in alone for combination, found in each.items()}
    alone_s = {name: {size: seconds[combination_of({name: size})] for size in sizes} for name in load.models}
    stacks = {
        name: StackCosts(
            tuple(load.stacks[name].members), {size: seconds[combination_of({name: size})] for size in found}
        )
        for name, found in stack_sizes.items()
    }
    return ExecutionCosts(
        parameters,
        alone_s,
        {combination: seconds[combination] for combination in fused},
        stacks,
        pads=runner.graphs is not None,
    )


def _in_turns(
    blank_images: Mapping[str, BlankImages], runner: ExecutionRunner, combinations: Sequence[Combination]
) -> dict[Combination, float]:
    """Returns the median seconds of each combination. None runs twice in a row while others need more samples."""
    samples_s: dict[Combination, list[float]] = {combination: [] for combination in combinations}
    waiting = {
        combination: time_execution(
            blank_images, runner, combination, rounds=MAX_ROUNDS, add_sample=samples_s[combination].append
        )
        for combination in combinations
    }
    while waiting:
        for combination, steps in list(waiting.items()):
            found = samples_s[combination]
            if (len(found) >= MIN_ROUNDS and samples_agree(found)) or next(steps, steps) is steps:
                del waiting[combination]
    return {combination: statistics.median(found) for combination, found in samples_s.items()}


class Bound:
    """Measures the bound: the throughput if all requests wait from the start, with equally many of each model.

    Each model runs in its best batch size, in the better of two execution modes. One mode uses all cores. In the other,
    all lanes work, and begin with different models.

    Args:
        load: the models.
        modes: the costs of the models' batches.
    """

    def __init__(self, load: Load, modes: ExecutionModes) -> None:
        self._load, self._modes = load, modes
        self._whole_sizes = {name: best_batch(modes.whole, name) for name in load.models}
        self._lane_sizes = {name: best_batch(modes.lane, name) for name in load.models} if modes.num_lanes else {}

    def per_second(self) -> float:
        """Returns the bound in requests per second: the best of two measurements in each execution mode."""
        measure_modes = [self._one_by_one, self._on_lanes] if self._modes.num_lanes else [self._one_by_one]
        return max([measure() for measure in measure_modes for _ in range(2)])

    def _one_by_one(self) -> float:
        runner = self._load.runner(self._modes.whole)
        self._load.record(runner, [((name, size),) for name, size in self._whole_sizes.items()])
        image_s = 0.0
        for name, size in self._whole_sizes.items():
            batch = {name: self._load.batch(name, size)}
            image_s += _seconds(lambda batch=batch: runner.run(batch)) / size
        return len(self._whole_sizes) / image_s

    def _on_lanes(self) -> float:
        lanes = [self._load.runner(num_threads=1, number=number) for number in range(self._modes.num_lanes)]
        images = max(self._lane_sizes.values())  # of each model, on each lane

        def serve(lane: MergeRunner, first: int) -> None:
            for name in rotated(list(self._lane_sizes), first % len(self._lane_sizes)):
                size = self._lane_sizes[name]
                for _ in range(images // size):
                    lane.run({name: self._load.batch(name, size)})

        with ThreadPoolExecutor(len(lanes)) as threads:
            seconds = _seconds(lambda: list(threads.map(serve, lanes, range(len(lanes)))))
        return len(lanes) * len(self._lane_sizes) * images / seconds


def image_ratio(modes: ExecutionModes, models: Sequence[str], size: int) -> float:
    """Returns the cost of merged images of these models, divided by that of single images in the best rival.

    Both take the better execution mode. Rivals run single images one after another on all cores, or on a worker for
    each lane.

    Args:
        modes: the costs of the models' batches.
        models: the models. Each gets equally many requests.
        size: the number of images in a batch.
    """

    def image_s(count: int) -> float:
        ways = [(modes.whole, 1), (modes.lane, modes.num_lanes)][: 2 if modes.num_lanes else 1]
        return min(sum(costs.batch_s(model, count) for model in models) / count / lanes for costs, lanes in ways)

    return image_s(size) / image_s(1)


def best_batch(costs: ExecutionCosts, model: str) -> int:
    """Returns the measured batch size with the least cost per image. Sizes are powers of two."""
    return min(costs.alone_s[model], key=lambda size: costs.alone_s[model][size] / size)


def fusion_contest(load: Load, costs: ExecutionCosts) -> Contest:
    """Returns a contest that times each combination of models that could be fused, in two ways.

    One way is a fused execution. The other way is one execution after another. Figures are in seconds, and ``figure``
    returns their names. On a GPU, a fused execution is one graph that forks over streams. Only there, the contest has
    claims; see ``fusion_claims``.
    """
    combinations = list(costs.fused_s)

    def turn(number: int) -> Mapping[str, float]:
        runner = load.runner(costs)
        load.record(runner, [(single,) for combination in combinations for single in combination])
        load.record(runner, combinations)
        figures = {}
        for combination in combinations:
            batches = {name: load.batch(name, count) for name, count in combination}
            runs: dict[str, Callable[[], object]] = {
                FUSED: lambda batches=batches: runner.run(batches),
                APART: lambda batches=batches: [runner.run({name: batch}) for name, batch in batches.items()],
            }
            for how in rotated([FUSED, APART], number):
                runs[how]()  # packs convolutions for this number of threads
                runs[how]()
                figures[figure(combination, how)] = _seconds(runs[how])
        return figures

    on_gpu = load.device.type == "cuda"
    return Contest("fusion", turn, lambda contest: fusion_claims(contest, combinations) if on_gpu else ())


def fusion_claims(contest: Contest, combinations: Sequence[Combination]) -> list[Claim]:
    """Returns a claim for each combination: one forked graph takes no longer than the models' own graphs one by one."""
    claims = []
    for combination in combinations:
        found = ratio(*(contest.figures[figure(combination, how)] for how in (FUSED, APART)))
        name = f"{in_words(combination)} as one forked graph: seconds, times one after the other"
        claims.append(Claim(name, found, "x", 1.0, Direction.AT_MOST, turn_s=contest.turn_s))
    return claims


def figure(combination: Combination, how: str) -> str:
    """Returns the name of the figure for a combination. ``how`` is ``FUSED`` or ``APART``."""
    return f"{in_words(combination)}, {how}"


def in_words(combination: Combination) -> str:
    """Returns a combination for people, such as ``2 alexnet + 2 resnet18``."""
    return " + ".join(f"{count} {name}" for name, count in combination)


def pays(costs: ExecutionCosts, combination: Combination) -> bool:
    """Returns whether the scheduler fuses a combination.

    It does if the fused execution costs less than the batches one by one, by a share of ``NOISE_MARGIN`` at least.
    """
    apart_s = sum(costs.batch_s(name, count) for name, count in combination)
    return (1 + NOISE_MARGIN) * costs.fused_s[combination] <= apart_s


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
