"""Models of one architecture in the benchmark of tenants; no test depends on times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from benchmarks.common.claim import Verdict
from benchmarks.multi_tenant import stacks
from benchmarks.multi_tenant.costs import measure_costs
from benchmarks.multi_tenant.load import Load
from benchmarks.multi_tenant.replays import Replays
from benchmarks.multi_tenant.rivals import FUSE, SEQUENTIAL
from benchmarks.multi_tenant.trace import poisson_trace
from split_infer_ros.server.schedule.execution_costs import ExecutionCosts, StackCosts
from split_infer_ros.server.schedule.execution_modes import ExecutionModes

MODELS = tuple(f"squeezenet1_0 {number}" for number in range(3))
NAME = " + ".join(MODELS)
ALONE = ExecutionCosts(dict.fromkeys(MODELS, 1), {name: {1: 0.01, 2: 0.02} for name in MODELS})
PAYS = replace(ALONE, stacks={NAME: StackCosts(MODELS, {1: 0.02, 2: 0.04})})
DOES_NOT = replace(ALONE, stacks={NAME: StackCosts(MODELS, {1: 0.03, 2: 0.06})})


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    found = stacks.load_alike("squeezenet1_0", 3, 48, torch.device("cpu"))
    yield found
    found.close()


def test_models_differ_in_their_weights(load: Load) -> None:
    assert tuple(load.models) == MODELS
    image = load.images[MODELS[0]]
    with torch.inference_mode():
        first, second = (load.models[name].backbone("output")(image)[0] for name in MODELS[:2])
    assert (first - second).abs().max() > 0.1
    assert list(load.stacks) == [NAME]
    assert load.batch(NAME, 2).shape == (2, 9, 48, 48)


@pytest.mark.parametrize(
    ("rival", "costs", "is_stacked"),
    [
        (FUSE, PAYS, False),
        (stacks.STACK, PAYS, True),
        (stacks.STACK, DOES_NOT, False),
        (stacks.ALWAYS, DOES_NOT, True),
        (SEQUENTIAL, PAYS, False),
    ],
)
def test_stack_is_used_where_it_pays_or_always(rival: str, costs: ExecutionCosts, is_stacked: bool, load: Load) -> None:
    serve = stacks.rivals_alike(ExecutionModes(costs), window=5)[rival]
    log = serve(poisson_trace(MODELS, 12, 1e6), load)
    counts = log.counts()
    assert sorted(log.end_s) == list(range(12))
    assert (counts["stacked"] > 0) == is_stacked
    assert counts["fused"] >= counts["stacked"]


def test_lanes_have_rivals_of_their_own() -> None:
    names = list(stacks.rivals_alike(ExecutionModes(PAYS, 2, PAYS), window=5))
    assert names == [SEQUENTIAL, FUSE, stacks.STACK, f"{FUSE}, lanes", f"{stacks.STACK}, lanes", stacks.ALWAYS]


def test_costs_of_a_stack_are_measured(load: Load) -> None:
    runner = load.new_runner()
    costs = measure_costs(load, runner, (1,), fuse=False, window=5)
    runner.close()
    stack = costs.stacks[NAME]
    assert stack.members == MODELS
    assert list(stack.seconds) == [1, 2], "five requests are at most two of each"
    assert min(stack.seconds.values()) > 0


def test_rows_compare_all_three_ways(load: Load) -> None:
    contest = stacks.stack_contest(load, PAYS, "3 small")
    for _ in range(2):
        contest.take()
    one, two = stacks.stack_rows(contest, PAYS)
    assert (one["images_of_each"], two["images_of_each"], one["turns"]) == (1, 2, 2)
    assert one["is_stacked"]
    assert min(one["stacked_s"], one["fused_s"], one["apart_s"]) > 0
    assert one["stacked_times_apart"] > 0
    assert not stacks.pays(DOES_NOT.stacks[NAME], DOES_NOT, 1)
    assert len(contest.conclude(contest)) == 2


def test_slower_network_is_no_gain(load: Load) -> None:
    contest = stacks.stack_contest(load, PAYS, "3 small")
    for size, (stacked_s, fused_s) in {1: (1.0, 2.0), 2: (3.0, 2.0)}.items():
        for how, seconds in ((stacks.STACKED, stacked_s), (stacks.FUSED, fused_s), (stacks.APART, 2.5)):
            contest.figures[stacks.figure(size, how)] = [seconds] * 10
    found = [(claim.found.value, claim.verdict) for claim in contest.conclude(contest)]
    assert found == [(0.5, Verdict.HOLDS), (1.5, Verdict.FAILS)]


def test_claim_compares_the_scheduler_with_and_without_stacks(load: Load) -> None:
    rivals = stacks.rivals_alike(ExecutionModes(PAYS), window=5)
    replays = Replays(load, rivals, 3.0, 6, lambda: 1.0, lambda each: stacks.claims_alike(each, "3 small"))
    replays.contest.take()
    (claim,) = replays.contest.conclude(replays.contest)
    assert claim.name == "3 small at 3 times capacity: throughput with stacks, times without"
    rows = list(stacks.served_alike_rows(replays, load, on_gpu=False))
    assert [row["rival"] for row in rows] == list(rivals)
    assert {(row["what"], row["models"]) for row in rows} == {(stacks.ALIKE, NAME)}
