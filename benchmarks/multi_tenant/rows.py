"""Makes the rows and the picture of a report: about served traces, costs and decisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.common.estimate import Estimate, median, ratio
from benchmarks.common.picture import Panel
from benchmarks.common.turns import Contest
from benchmarks.multi_tenant.claims import FIGURES, RESPONSES, in_turns
from benchmarks.multi_tenant.costs import APART, FUSED, figure, image_ratio, in_words, pays
from benchmarks.multi_tenant.decisions import CASES, name_of
from benchmarks.multi_tenant.replays import AT_ONCE, POISSON, Replays
from benchmarks.multi_tenant.rivals import BREADTH_FIRST, FUSE, MERGE, SEQUENTIAL, with_lanes
from split_infer_ros.server.schedule.execution_costs import NOISE_MARGIN, ExecutionCosts
from split_infer_ros.server.schedule.execution_modes import ExecutionModes

Row = dict[str, Any]

GAIN = 1 - NOISE_MARGIN  # merging pays if an image costs less than this share of a single one
KINDS = ("execution", "delay", "response")
TIMES = ("per_second", *(f"{kind}_{part}_s" for kind in KINDS for part in ("mean", "p99")))
TIMES_AT_ONCE = ("per_second", *(f"{kind}_mean_s" for kind in KINDS))  # no p99, which means nothing for three requests
AT_ONCE_TITLES = ("throughput", "execution", "mean delay", "mean response")
STEPS = (  # of the ablation: what is added, the rival with it, the rival without it
    ("merging", MERGE, SEQUENTIAL),
    ("fusing", FUSE, MERGE),
    ("lanes", with_lanes(MERGE), MERGE),
    ("fusing, with lanes", with_lanes(FUSE), with_lanes(MERGE)),
)


def with_interval(name: str, found: Estimate) -> Row:
    """Returns a figure as ``name``, and the ends of its interval as ``name_low`` and ``name_high``."""
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def batch_rows(modes: ExecutionModes) -> Iterator[Row]:
    """Yields a row for each model and batch size: the seconds per image on all cores, and on lanes if there are any."""
    for model, sizes in modes.whole.alone_s.items():
        for size, seconds in sizes.items():
            row = {"what": "batch", "model": model, "size": size, "image_s": seconds / size}
            if modes.num_lanes:
                row["lanes_s"] = modes.lane.batch_s(model, size) / size / modes.num_lanes
            yield row


def merging_rows(modes: ExecutionModes, window: int) -> Iterator[Row]:
    """Yields a row for each model: how much less an image costs in a batch, against the best rival's single image."""
    for model in modes.whole.alone_s:
        for size in range(2, window + 1):
            if size in modes.whole.alone_s[model]:
                found = image_ratio(modes, [model], size)
                yield {"what": "merging", "model": model, "size": size, "image_ratio": found, "pays": found < GAIN}


def fusion_rows(contest: Contest, costs: ExecutionCosts) -> Iterator[Row]:
    """Yields a row for each combination: its cost fused and one by one, and whether the scheduler fuses it."""
    for combination in costs.fused_s:
        fused, apart = (contest.figures[figure(combination, how)] for how in (FUSED, APART))
        row: Row = {"what": "fusion", "models": in_words(combination), "turns": contest.turns}
        row |= with_interval("fused_s", median(fused)) | with_interval("apart_s", median(apart))
        yield row | with_interval("fused_times_apart", ratio(fused, apart)) | {"is_fused": pays(costs, combination)}


def served_rows(replays: Replays, on_gpu: bool) -> Iterator[Row]:
    """Yields a row for each rival: how it served the Poisson traces, its executions by kind, and its usage.

    On a GPU, a row also says whether the rival launches graphs, or kernels one by one.
    """
    for rival in replays.rivals:
        row: Row = {"what": POISSON, "load": replays.part, "rival": rival, "turns": replays.contest.turns}
        if on_gpu:
            row["launches"] = "kernels" if rival == BREADTH_FIRST else "graphs"
        for name in TIMES:
            row |= with_interval(name, median(replays.samples(rival, name)))
        yield row | replays.counts[rival] | replays.usage.row(rival)


def at_once_rows(replays: Replays) -> Iterator[Row]:
    """Yields a row for each rival: how it served one request of each model at once (Fig. 6)."""
    for rival in replays.rivals:
        row: Row = {"what": AT_ONCE, "rival": rival, "turns": replays.contest.turns}
        for name in TIMES_AT_ONCE:
            row |= with_interval(name, median(replays.samples(rival, name, AT_ONCE)))
        yield row


def step_rows(replays: Replays) -> Iterator[Row]:
    """Yields a row for each step of the ablation: a rival's figures divided by those of the rival without the step.

    A step is something that the scheduler may do, such as fusing. The ratios are those of the same turns.
    """
    for step, rival, base in STEPS:
        if rival in replays.rivals and base in replays.rivals:
            row: Row = {"what": "step", "load": replays.part, "step": step, "rival": rival, "base": base}
            for name in FIGURES:
                row |= with_interval(name, in_turns(replays, rival, base, name))
            yield row


def bound_row(replays: Replays) -> Row:
    """Returns a row with the bound, measured in the turns of these replays."""
    return {"what": "bound", "load": replays.part} | with_interval("per_second", median(replays.bounds))


def decision_rows(contest: Contest) -> Iterator[Row]:
    """Yields a row for each case: how many microseconds a decision takes."""
    for window, waiting, late in CASES:
        row = {"what": "decision", "window": window, "waiting": waiting, "late": late}
        yield row | with_interval("p50_us", median(contest.figures[name_of((window, waiting, late))]))


def panels(heaviest: Replays) -> Sequence[Panel]:
    """Returns the panels of Fig. 5 with response times, then those of Fig. 6.

    They show each turn's figures divided by those of sequential execution. ``heaviest`` has the turns at the heaviest
    load.
    """
    shown = [(POISSON, name, title) for name, title in (FIGURES | RESPONSES).items()]
    shown += [(AT_ONCE, name, f"{AT_ONCE}: {title}") for name, title in zip(TIMES_AT_ONCE, AT_ONCE_TITLES, strict=True)]
    made = []
    for what, name, title in shown:
        base = heaviest.samples(SEQUENTIAL, name, what)
        samples = {rival: list(heaviest.samples(rival, name, what) / base) for rival in heaviest.rivals}
        made.append(Panel(f"{title}, sequential = 1", "", samples))
    return made
