"""What executions cost, measured before requests come; what fusing costs, and the bound, measured among the turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from _tenant_load import Load

from split_infer_ros.runtime.num_threads import max_threads
from split_infer_ros.serving.concurrent_lanes import ConcurrentLanes
from split_infer_ros.serving.cost_measurer import MOST_ROUNDS, ROUNDS
from split_infer_ros.serving.execution_costs import NO_MORE, ExecutionCosts, Group, group
from split_infer_ros.serving.execution_modes import ExecutionModes
from split_infer_ros.serving.execution_timing import Runner, agree, fusable, sample
from split_infer_ros.serving.merge_runner import Engine
from split_infer_ros.telemetry.turns import Contest, rotated

FUSED, APART = "fused", "one after the other"


def measured_ways(load: Load, sizes: Sequence[int]) -> ExecutionModes:
    """Costs with all cores or on the GPU, and on lanes if there are several cores.

    Args:
        load: the models.
        sizes: of batches whose cost is measured.
    """
    engine = load.new_engine()
    whole = measured(load, engine, sizes)
    engine.close()
    if engine.is_asynchronous or max_threads() == 1:
        return ExecutionModes(whole)
    lanes = ConcurrentLanes([load.new_engine(cores=1) for _ in range(max_threads())])
    lane = measured(load, lanes, sizes, fuse=False)
    lanes.close()
    return ExecutionModes(whole, max_threads(), lane)


def measured(load: Load, runner: Runner, sizes: Sequence[int], fuse: bool = True) -> ExecutionCosts:
    """Costs as the node measures them: medians of samples that agree, or of as many as it takes at most.

    Args:
        load: the models.
        runner: an engine, or several.
        sizes: of batches of one model.
        fuse: whether combinations of models are measured too.
    """
    parameters = {name: model.parameters for name, model in load.models.items()}
    fused = list(fusable(parameters)) if fuse else []
    seconds: dict[Group, float] = {}
    for combination in [*(group({name: size}) for size in sizes for name in load.models), *fused]:
        samples_s: list[float] = []
        for _ in sample(load.models, runner, combination, MOST_ROUNDS, samples_s.append):
            if len(samples_s) >= ROUNDS and agree(samples_s):
                break
        seconds[combination] = statistics.median(samples_s)
    alone_s = {name: {size: seconds[group({name: size})] for size in sizes} for name in load.models}
    return ExecutionCosts(parameters, alone_s, {combination: seconds[combination] for combination in fused})


class Bound:
    """What the processor serves if all requests are there from the start, as many of each model as of any other.

    Each model runs in its best batches, in the better of two ways: with all cores, or on lanes that are all at work and
    begin with different models.

    Args:
        load: the models.
        ways: what their batches cost.
    """

    def __init__(self, load: Load, ways: ExecutionModes) -> None:
        self._load, self._ways = load, ways
        self._whole_sizes = {name: best_batch(ways.whole, name) for name in load.models}
        self._lane_sizes = {name: best_batch(ways.lane, name) for name in load.models} if ways.lanes else {}

    def per_second(self) -> float:
        """Measure it once in each way, when all has run once before."""
        serve = [self._one_by_one, self._on_lanes] if self._ways.lanes else [self._one_by_one]
        return max([way() for way in serve for _ in range(2)])

    def _one_by_one(self) -> float:
        engine = self._load.engine(self._ways.whole)
        self._load.record(engine, [((name, size),) for name, size in self._whole_sizes.items()])
        image_s = 0.0
        for name, size in self._whole_sizes.items():
            batch = {name: self._load.batch(name, size)}
            image_s += _seconds(lambda batch=batch: engine.run(batch)) / size
        return len(self._whole_sizes) / image_s

    def _on_lanes(self) -> float:
        lanes = [self._load.engine(cores=1, number=number) for number in range(self._ways.lanes)]
        images = max(self._lane_sizes.values())  # of each model, on each lane

        def serve(engine: Engine, first: int) -> None:
            for name in rotated(list(self._lane_sizes), first % len(self._lane_sizes)):
                size = self._lane_sizes[name]
                for _ in range(images // size):
                    engine.run({name: self._load.batch(name, size)})

        with ThreadPoolExecutor(len(lanes)) as helpers:
            seconds = _seconds(lambda: list(helpers.map(serve, lanes, range(len(lanes)))))
        return len(lanes) * len(self._lane_sizes) * images / seconds


def best_batch(costs: ExecutionCosts, model: str) -> int:
    """The measured size at which an image costs least; sizes are powers of two."""
    return min(costs.alone_s[model], key=lambda size: costs.alone_s[model][size] / size)


def fusion_contest(load: Load, costs: ExecutionCosts) -> Contest:
    """Each combination of models that could be fused: as one execution, and its parts one after the other.

    Figures are in seconds; ``figure`` gives their names.
    """
    combinations = list(costs.fused_s)

    def turn(number: int) -> Mapping[str, float]:
        engine = load.engine(costs)
        load.record(engine, combinations)
        found = {}
        for combination in combinations:
            batches = {name: load.batch(name, count) for name, count in combination}
            do: dict[str, Callable[[], object]] = {
                FUSED: lambda batches=batches: engine.run(batches),
                APART: lambda batches=batches: [engine.run({name: batch}) for name, batch in batches.items()],
            }
            for way in rotated([FUSED, APART], number):
                do[way]()  # convolutions are packed for this count of cores
                do[way]()
                found[figure(combination, way)] = _seconds(do[way])
        return found

    return Contest("fusion", turn)


def figure(combination: Group, way: str) -> str:
    """The name of what a combination takes in a way."""
    return f"{in_words(combination)}, {way}"


def in_words(combination: Group) -> str:
    """A combination for people, as ``2 alexnet + 2 resnet18``."""
    return " + ".join(f"{count} {name}" for name, count in combination)


def pays(costs: ExecutionCosts, combination: Group) -> bool:
    """Whether the scheduler fuses this combination: its measured cost is clearly below that of its parts."""
    apart_s = sum(costs.batch_s(name, count) for name, count in combination)
    return (1 + NO_MORE) * costs.fused_s[combination] <= apart_s


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
