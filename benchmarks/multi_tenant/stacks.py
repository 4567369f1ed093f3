"""Compares three ways to run models of one architecture: as one network, as one execution, and one after another.

One network is a stack. One execution runs a network for each model at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import maximum, median, ratio
from benchmarks.common.turns import Contest, rotated
from benchmarks.multi_tenant.claims import in_turns
from benchmarks.multi_tenant.costs import Bound, measure_modes
from benchmarks.multi_tenant.load import Load, Serve, random_image
from benchmarks.multi_tenant.replays import Replays
from benchmarks.multi_tenant.rivals import FUSE, SEQUENTIAL, sequential, with_lanes
from benchmarks.multi_tenant.rows import served_rows, with_interval
from benchmarks.multi_tenant.scheduled import Scheduled
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.server.schedule.execution_costs import NOISE_MARGIN, ExecutionCosts, StackCosts
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.scheduler import Rules
from split_infer_ros.split.load import build_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.stacked_model import StackedModel
from split_infer_ros.split.torch_network import TorchNetwork

ALIKE = "poisson, one architecture"
STACK, ALWAYS = "merge, fuse and stack", "stack always"
STACKED, FUSED, APART = "as one network", "as one execution", "one after the other"
UNDER_COST = 1e-3  # the rival that always uses a stack reckons with this share of its cost
CALIBRATION_IMAGES = 4


@dataclass(frozen=True)
class Alike:
    """Models of one architecture with different weights, and their contests.

    Attributes:
        load: the models and their stack.
        modes: the costs of their executions.
        ways: the contest of the three ways to compute the same batches.
        replays: the contest of rivals that serve traces of requests.
    """

    load: Load
    modes: ExecutionModes
    ways: Contest
    replays: Replays

    @property
    def contests(self) -> tuple[Contest, Contest]:
        """The contest of the three ways and the contest of the rivals."""
        return self.ways, self.replays.contest

    def rows(self, on_gpu: bool) -> Iterator[dict[str, Any]]:
        """Yields the rows of both contests."""
        yield from stack_rows(self.ways, self.modes.whole)
        yield from served_alike_rows(self.replays, self.load, on_gpu)


def prepare_alike(
    name: str,
    count: int,
    *,
    side: int,
    device: torch.device,
    sizes: Sequence[int],
    window: int,
    part: float,
    requests: int,
) -> Alike:
    """Loads models of one architecture, measures the costs of their executions, and makes their contests.

    Args:
        name: the architecture's name in the catalogue.
        count: the number of models.
        side: the side of an image, in pixels.
        device: the device that runs the models.
        sizes: the batch sizes to measure.
        window: from how many waiting requests the scheduler chooses.
        part: the rate of requests divided by sequential capacity.
        requests: the number of requests in a trace.
    """
    load = load_alike(name, count, side, device)
    modes = measure_modes(load, sizes, window)
    bound = Bound(load, modes).per_second
    replays = Replays(
        load, rivals_alike(modes, window), part, requests, bound, lambda each: claims_alike(each, f"{count} {name}")
    )
    return Alike(load, modes, stack_contest(load, modes.whole, f"{count} {name}"), replays)


def load_alike(name: str, count: int, side: int, device: torch.device) -> Load:
    """Returns models of one architecture, each with weights of its own, and their stack.

    Args:
        name: the architecture's name in the catalogue.
        count: the number of models.
        side: the side of an image, in pixels.
        device: the device that runs the models.
    """
    models = {}
    for number in range(count):
        entry, module = build_model(ModelSpec(name, "none"))
        entry = replace(entry, preprocess=replace(entry.preprocess, height=side, width=side))
        images = torch.rand((CALIBRATION_IMAGES, *entry.image_shape), generator=torch.Generator().manual_seed(number))
        models[f"{name} {number}"] = SplitModel(TorchNetwork(entry, randomise(module, images, number)), device)
    stack = StackedModel(models, "output")
    images_of = {key: random_image(model) for key, model in models.items()}
    return Load(models, images_of, stacks={stack.name: stack})


def rivals_alike(modes: ExecutionModes, window: int) -> dict[str, Serve]:
    """Returns the rivals for models of one architecture, by name: sequential execution and the scheduler.

    The scheduler takes part in three forms: it may use stacks, may not use them, or always uses them.

    Args:
        modes: the costs of executions.
        window: from how many waiting requests the scheduler chooses.
    """
    used = {"": ExecutionModes(modes.whole)} | ({"lanes": modes} if modes.num_lanes else {})
    by_name: dict[str, Serve] = {SEQUENTIAL: sequential}
    for lanes, each in used.items():
        for name, stack in ((FUSE, False), (STACK, True)):
            by_name[with_lanes(name) if lanes else name] = Scheduled(each, Rules(window, stack=stack))
    by_name[ALWAYS] = Scheduled(ExecutionModes(_always(modes.whole)), Rules(window))
    return by_name


def stack_contest(load: Load, costs: ExecutionCosts, models: str) -> Contest:
    """Returns a contest that times equal batches in all three ways. Figures are in seconds; ``figure`` names them.

    Args:
        load: the models and their stack.
        costs: the costs of the models and of the stack.
        models: a description of the models, for claims.
    """
    (stack,) = load.stacks.values()
    sizes = list(costs.stacks[stack.name].seconds)

    def turn(number: int) -> Mapping[str, float]:
        runner = load.runner(costs)
        load.record(runner, [((name, size),) for name in (stack.name, *load.models) for size in sizes])
        load.record(runner, [tuple((name, size) for name in load.models) for size in sizes])
        figures = {}
        for size in sizes:
            batches = {name: load.batch(name, size) for name in load.models}
            runs: dict[str, Callable[[], object]] = {
                STACKED: lambda batches=batches: runner.run(batches, stack),
                FUSED: lambda batches=batches: runner.run(batches),
                APART: lambda batches=batches: [runner.run({name: batch}) for name, batch in batches.items()],
            }
            for how in rotated(list(runs), number):
                runs[how]()  # packs convolutions for this number of threads
                runs[how]()
                begin = time.perf_counter()
                runs[how]()
                figures[figure(size, how)] = time.perf_counter() - begin
        return figures

    return Contest(models, turn, lambda contest: _claims(contest, costs))


def figure(size: int, how: str) -> str:
    """Returns the name of the figure for ``size`` images of each model in one of the three ways."""
    return f"{size} of each, {how}"


def pays(costs: StackCosts, whole: ExecutionCosts, size: int) -> bool:
    """Returns whether the scheduler uses the stack if ``size`` images of each model wait.

    It does if the stack costs less than both other ways, by a share of ``NOISE_MARGIN`` at least.
    """
    counts = dict.fromkeys(costs.members, size)
    apart_s = sum(whole.batch_s(model, count) for model, count in counts.items())
    return (1 + NOISE_MARGIN) * costs.seconds[size] <= min(apart_s, whole.execution_s(counts))


def stack_rows(contest: Contest, costs: ExecutionCosts) -> Iterator[dict[str, Any]]:
    """Yields a row for each batch size: the seconds of the three ways, and whether the scheduler uses the stack."""
    for name, stack in costs.stacks.items():
        for size in stack.seconds:
            samples = {how: contest.figures[figure(size, how)] for how in (STACKED, FUSED, APART)}
            row: dict[str, Any] = {"what": "stack", "models": name, "images_of_each": size, "turns": contest.turns}
            for key, how in (("stacked_s", STACKED), ("fused_s", FUSED), ("apart_s", APART)):
                row |= with_interval(key, median(samples[how]))
            for key, one, other in (
                ("stacked_times_apart", STACKED, APART),
                ("stacked_times_fused", STACKED, FUSED),
                ("fused_times_apart", FUSED, APART),
            ):
                row |= with_interval(key, ratio(samples[one], samples[other]))
            yield row | {"is_stacked": pays(stack, costs, size)}


def served_alike_rows(replays: Replays, load: Load, on_gpu: bool) -> Iterator[dict[str, Any]]:
    """Yields a row for each rival: how it served requests of one architecture, and its executions by kind."""
    for row in served_rows(replays, on_gpu):
        yield row | {"what": ALIKE, "models": " + ".join(load.models)}


def claims_alike(replays: Replays, models: str) -> list[Claim]:
    """Returns the claim that stacks do not lower the throughput of the scheduler.

    A share of ``NOISE_MARGIN`` is allowed.

    Args:
        replays: the turns at one load.
        models: a description of the models.
    """
    with_stacks, without = (
        (with_lanes(name) if with_lanes(name) in replays.rivals else name) for name in (STACK, FUSE)
    )
    name = f"{models} at {replays.part:g} times capacity: throughput with stacks, times without"
    found = in_turns(replays, with_stacks, without, "per_second")
    return [Claim(name, found, "x", 1 - NOISE_MARGIN, turn_s=replays.contest.turn_s)]


def _claims(contest: Contest, costs: ExecutionCosts) -> list[Claim]:
    """Returns a claim for each batch size: one network takes less time than the better of the other ways."""
    claims = []
    for stack in costs.stacks.values():
        for size in stack.seconds:
            one, *others = (contest.figures[figure(size, how)] for how in (STACKED, FUSED, APART))
            worst = maximum([ratio(one, other) for other in others])
            name = f"{contest.name}, {size} of each, as one network: seconds, times the best other way"
            claims.append(Claim(name, worst, "x", 1.0, Direction.AT_MOST, turn_s=contest.turn_s))
    return claims


def _always(costs: ExecutionCosts) -> ExecutionCosts:
    """Returns costs with which the scheduler uses a stack whenever several of its models wait."""
    cheap = {
        name: replace(stack, seconds={size: UNDER_COST * seconds for size, seconds in stack.seconds.items()})
        for name, stack in costs.stacks.items()
    }
    return replace(costs, stacks=cheap)
