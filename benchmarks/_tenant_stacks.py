"""Models of one architecture, each with its own weights: as one network, as one execution, and one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from _claim import Claim, Direction
from _estimate import maximum, median, ratio
from _tenant_claims import in_turns
from _tenant_costs import Bound, measure_modes
from _tenant_load import Load, Serve
from _tenant_replays import Replays
from _tenant_rivals import FUSE, SEQUENTIAL, sequential, with_lanes
from _tenant_rows import served_rows, with_interval
from _tenant_scheduled import Scheduled
from _turns import Contest, rotated

from split_infer_ros.models.random_weights import randomise
from split_infer_ros.server.schedule.execution_costs import NOISE_MARGIN, ExecutionCosts, StackCosts
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.scheduler import Rules
from split_infer_ros.split.load import build_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.stacked_model import StackedModel
from split_infer_ros.split.torch_model import TorchModel

ALIKE = "poisson, one architecture"
STACK, ALWAYS = "merge, fuse and stack", "stack always"
STACKED, FUSED, APART = "as one network", "as one execution", "one after the other"
UNDER_COST = 1e-3  # of a stack's cost, for the rival that always uses it
CALIBRATION_IMAGES = 4


@dataclass(frozen=True)
class Alike:
    """Models of one architecture, and what is measured of them.

    Attributes:
        load: the models and their stack.
        modes: what their executions cost.
        ways: the contest of the three ways to compute the same batches.
        replays: traces of requests, served by the rivals.
    """

    load: Load
    modes: ExecutionModes
    ways: Contest
    replays: Replays

    @property
    def contests(self) -> tuple[Contest, Contest]:
        """Both contests, whose turns are to be taken."""
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
    """Loads models of one architecture and measures what they cost.

    Args:
        name: of the catalogue.
        count: how many models.
        side: of an image, in pixels.
        device: where they run.
        sizes: of batches whose cost is measured.
        window: requests that the scheduler looks at.
        part: the rate of requests, over sequential capacity.
        requests: of a trace.
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
        name: of the catalogue.
        count: how many models.
        side: of an image, in pixels.
        device: where they run.
    """
    models = {}
    for number in range(count):
        entry, module = build_model(ModelSpec(name, "none"))
        entry = replace(entry, preprocess=replace(entry.preprocess, height=side, width=side))
        images = torch.rand((CALIBRATION_IMAGES, *entry.image_shape), generator=torch.Generator().manual_seed(number))
        models[f"{name} {number}"] = TorchModel(entry, randomise(module, images, number), device)
    stack = StackedModel(models, "output")
    images_of = {key: torch.rand_like(model.blank_images(1)) for key, model in models.items()}
    return Load(models, images_of, stacks={stack.name: stack})


def rivals_alike(modes: ExecutionModes, window: int) -> dict[str, Serve]:
    """Returns those that serve requests of one architecture: the scheduler without stacks, with them, and always so.

    Args:
        modes: what executions cost.
        window: requests that the scheduler looks at.
    """
    used = {"": ExecutionModes(modes.whole)} | ({"lanes": modes} if modes.num_lanes else {})
    by_name: dict[str, Serve] = {SEQUENTIAL: sequential}
    for lanes, each in used.items():
        for name, stack in ((FUSE, False), (STACK, True)):
            by_name[with_lanes(name) if lanes else name] = Scheduled(each, Rules(window, stack=stack))
    by_name[ALWAYS] = Scheduled(ExecutionModes(_always(modes.whole)), Rules(window))
    return by_name


def stack_contest(load: Load, costs: ExecutionCosts, models: str) -> Contest:
    """Times the same batches in all three ways, in turns. Figures are in seconds; ``figure`` gives their names.

    Args:
        load: the models and their stack.
        costs: of both.
        models: what the models are, for claims.
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
                runs[how]()  # convolutions are packed for this number of threads
                runs[how]()
                begin = time.perf_counter()
                runs[how]()
                figures[figure(size, how)] = time.perf_counter() - begin
        return figures

    return Contest(models, turn, lambda contest: _claims(contest, costs))


def figure(size: int, how: str) -> str:
    """Returns the name of a contest's figure: what so many images of each model take."""
    return f"{size} of each, {how}"


def pays(costs: StackCosts, whole: ExecutionCosts, size: int) -> bool:
    """Returns whether the scheduler uses the stack for so many images of each model, if all of them wait."""
    counts = dict.fromkeys(costs.members, size)
    apart_s = sum(whole.batch_s(model, count) for model, count in counts.items())
    return (1 + NOISE_MARGIN) * costs.seconds[size] <= min(apart_s, whole.execution_s(counts))


def stack_rows(contest: Contest, costs: ExecutionCosts) -> Iterator[dict[str, Any]]:
    """Yields for each batch size what the three ways take, and whether the scheduler uses the stack."""
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
    """Yields how each rival served requests of one architecture, with its executions by kind."""
    for row in served_rows(replays, on_gpu):
        yield row | {"what": ALIKE, "models": " + ".join(load.models)}


def claims_alike(replays: Replays, models: str) -> list[Claim]:
    """Claims that the scheduler serves no less with stacks than without them. It may use them, and need not.

    Args:
        replays: all turns at one load.
        models: what the models are.
    """
    with_stacks, without = (
        (with_lanes(name) if with_lanes(name) in replays.rivals else name) for name in (STACK, FUSE)
    )
    name = f"{models} at {replays.part:g} times capacity: throughput with stacks, times without"
    found = in_turns(replays, with_stacks, without, "per_second")
    return [Claim(name, found, "x", 1 - NOISE_MARGIN, turn_s=replays.contest.turn_s)]


def _claims(contest: Contest, costs: ExecutionCosts) -> list[Claim]:
    """Claims that one network takes less time than the better of the other ways, for each batch size."""
    claims = []
    for stack in costs.stacks.values():
        for size in stack.seconds:
            one, *others = (contest.figures[figure(size, how)] for how in (STACKED, FUSED, APART))
            worst = maximum([ratio(one, other) for other in others])
            name = f"{contest.name}, {size} of each, as one network: seconds, times the best other way"
            claims.append(Claim(name, worst, "x", 1.0, Direction.AT_MOST, turn_s=contest.turn_s))
    return claims


def _always(costs: ExecutionCosts) -> ExecutionCosts:
    """Returns costs by which a stack is used whenever several of its models wait."""
    cheap = {
        name: replace(stack, seconds={size: UNDER_COST * seconds for size, seconds in stack.seconds.items()})
        for name, stack in costs.stacks.items()
    }
    return replace(costs, stacks=cheap)
