"""What is claimed of the scheduler on simulated boards. Each claim fails under a scheduler broken on purpose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pytest
from simulated_board import BOARD

from benchmarks.co_optimisation import __main__ as bench
from benchmarks.co_optimisation.runs import CO, MO, SCHEDULERS, D, Scheduler, Served, co_optimised, fixed
from benchmarks.co_optimisation.simulation import BoardKind, BoardResults, Simulation, simulate
from benchmarks.common.claim import Claim, Verdict
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.memory_cost.co_run_schedule import ReleasedTask
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.task import Task

SIZES = (bench.SIZES[0], bench.SIZES[-1])
BOARDS = 10  # so many samples a median needs at least
ON_TX2, ON_AGX, MEMORY, TIME, RESPONSE, BETTER, LOAD = range(7)


def claims_under(scheduler: Scheduler) -> list[Claim]:
    """Returns the claims if a scheduler decides under CO."""
    return simulate([BOARD] * BOARDS, bench.APPLICATIONS, SIZES, {**SCHEDULERS, CO: scheduler}).claims()


def failing(scheduler: Scheduler) -> set[int]:
    """Returns the claims that fail if a scheduler decides under CO. All others hold."""
    claims = claims_under(scheduler)
    assert len(claims) == 7
    assert all(claim.verdict is not Verdict.UNCLEAR for claim in claims)
    return {index for index, claim in enumerate(claims) if claim.verdict is Verdict.FAILS}


def device_where(is_broken: Callable[[MachineConstants], bool]) -> Scheduler:
    """Returns a scheduler that chooses device memory for all tasks on some machines."""

    def schedule(
        waiting: Sequence[Task], constants: MachineConstants, legal: Collection[Policy], latest_ms: Sequence[float]
    ) -> Sequence[ReleasedTask]:
        decide = fixed(Policy.DEVICE) if is_broken(constants) else co_optimised
        return decide(waiting, constants, legal, latest_ms)

    return schedule


def is_agx(constants: MachineConstants) -> bool:
    return constants.memory_ms_per_byte < 0.9 * BOARD.memory_ms_per_byte


def test_all_claims_hold_under_the_packages_scheduler() -> None:
    assert failing(co_optimised) == set()


def test_device_memory_on_one_board_fails_its_memory() -> None:
    """Copies also make CO slower than MO, at the large size."""
    assert failing(device_where(lambda constants: not is_agx(constants))) == {ON_TX2, BETTER}
    assert failing(device_where(is_agx)) == {ON_AGX, BETTER}


def test_policies_that_change_each_time_fail_memory_over_d() -> None:
    """Four tasks of few kernels then have memory of three policies, four times their data.

    More memory than D's is also more than MO's, and copies make CO slower than MO. No task is slower than under D.
    """
    turns: Counter[str] = Counter()

    def schedule(
        waiting: Sequence[Task], constants: MachineConstants, legal: Collection[Policy], latest_ms: Sequence[float]
    ) -> Sequence[ReleasedTask]:
        released = co_optimised(waiting, constants, legal, latest_ms)
        turns.update(each.task.name for each in released)
        return [
            each if each.task.num_kernels > 100 else ReleasedTask(each.task, POLICIES[turns[each.task.name] % 3])
            for each in released
        ]

    assert failing(schedule) == {ON_TX2, ON_AGX, MEMORY, BETTER}


def test_managed_memory_for_many_kernels_fails_time_over_d() -> None:
    """A flush follows each of the 1,024 kernels. The task is the longest, so the mean response is later as well."""

    def schedule(
        waiting: Sequence[Task], constants: MachineConstants, legal: Collection[Policy], latest_ms: Sequence[float]
    ) -> Sequence[ReleasedTask]:
        released = co_optimised(waiting, constants, legal, latest_ms)
        return [
            ReleasedTask(each.task, Policy.MANAGED if each.task.name == "solve" else each.policy) for each in released
        ]

    assert failing(schedule) == {TIME, RESPONSE, BETTER}


def test_the_longest_first_fails_response_over_d_alone() -> None:
    def schedule(
        waiting: Sequence[Task], constants: MachineConstants, legal: Collection[Policy], latest_ms: Sequence[float]
    ) -> Sequence[ReleasedTask]:
        return co_optimised(waiting[::-1], constants, legal, latest_ms[::-1])

    assert failing(schedule) == {RESPONSE}


def test_device_memory_for_all_fails_time_over_the_better() -> None:
    """D is what CO is compared with, so times D's all are 1."""
    assert failing(fixed(Policy.DEVICE)) == {ON_TX2, ON_AGX, BETTER}


def test_pinned_memory_for_all_fails_load_over_mo() -> None:
    """The GPU is idle while the CPU reads results past its cache, and that takes time."""
    assert failing(fixed(Policy.PINNED)) == {TIME, RESPONSE, BETTER, LOAD}


def test_a_scheduler_that_knows_no_uncached_reads_is_slower_than_mo() -> None:
    """It takes page-locked memory, whose results the CPU reads past its cache."""

    def schedule(
        waiting: Sequence[Task], constants: MachineConstants, legal: Collection[Policy], latest_ms: Sequence[float]
    ) -> Sequence[ReleasedTask]:
        return co_optimised(waiting, replace(constants, uncached_read_ms_per_byte=0.0), legal, latest_ms)

    slow_reads = replace(BOARD, uncached_ms_per_byte=3e-7)
    for scheduler, holds in ((schedule, False), (co_optimised, True)):
        simulation = simulate([slow_reads], bench.APPLICATIONS, SIZES, {**SCHEDULERS, CO: scheduler})
        assert (simulation.claims()[BETTER].verdict is Verdict.HOLDS) is holds


def test_the_command_reports_fits_and_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SIZES", SIZES[:1])
    report = bench.simulation(1)
    assert len(report.claims) == 9 + 7
    assert all(claim.name.startswith("simulated") for claim in report.claims)
    assert all(row["what"].startswith("simulated") for row in report.rows)


def test_simulation_says_so_in_rows_claims_and_panels() -> None:
    simulation = simulate([BOARD] * BOARDS, bench.APPLICATIONS, SIZES)
    *medians, pairs = simulation.rows()
    assert len(medians) == 2 * len(SIZES) * 3
    assert {row["what"] for row in medians} == {"simulated"}
    assert pairs["what"] == "simulated, runs of CO with pairs"
    assert 0 <= pairs["with_pairs"] <= 1
    claims = simulation.claims()
    assert all(claim.name.startswith("simulated, 20 boards") for claim in claims)
    assert [claim.found.turns for claim in claims] == [BOARDS, BOARDS, 0, 0, 0, 0, 0]  # the worst are counted
    assert [len(panel.samples) for panel in simulation.panels()] == [3] * 3
    assert all("simulated" in panel.title for panel in simulation.panels())


def test_later_rounds_are_served_as_well() -> None:
    """In the first round seven applications run, in two later ones five each. All of MO's memory is used at once."""
    served = simulate([BOARD], bench.APPLICATIONS, SIZES[:1]).boards[0].served[SIZES[0]]
    data = sum(application.task(SIZES[0]).data_bytes for application in bench.APPLICATIONS)
    assert (served[MO].memory_bytes, served[D].memory_bytes) == (data, 2 * data)
    assert served[D].total_ms > served[D].response_ms > 0


def test_pairs_of_a_run_are_counted() -> None:
    def schedule(waiting: Sequence[Task], *_: object) -> Sequence[ReleasedTask]:
        policies = Policy.DEVICE, Policy.MANAGED
        return [ReleasedTask(task, policy) for task, policy in zip(waiting, policies, strict=False)]

    simulation = simulate([BOARD], bench.APPLICATIONS, SIZES[:1], {**SCHEDULERS, CO: schedule})
    served = simulation.boards[0].served[SIZES[0]]
    assert served[CO].paired == 3 * 2 + 2 * 2 * 2
    assert simulation.rows()[-1]["with_pairs"] == 1


def results(memory: int) -> BoardResults:
    d, mo, co = Served(10.0, 6.0, 0.5, 200, 0), Served(12.0, 5.0, 0.4, 100, 0), Served(9.0, 6.6, 0.6, memory, 0)
    return BoardResults(BoardKind.TX2, {1: {D: d, MO: mo, CO: co}})


def test_claims_of_given_results() -> None:
    tx2, agx, *worst = Simulation([results(120)] * 10).claims()
    assert (tx2.found.value, tx2.found.turns, tx2.verdict) == (1.2, 10, Verdict.FAILS)
    assert agx.verdict is Verdict.UNCLEAR  # there is none
    assert [claim.found.value for claim in worst] == pytest.approx([0.6, 0.9, 1.1, 0.9, 1.5])
    assert [claim.verdict for claim in worst] == [
        Verdict.HOLDS,
        Verdict.HOLDS,
        Verdict.FAILS,
        Verdict.HOLDS,
        Verdict.HOLDS,
    ]


def test_different_boards_leave_a_median_unclear() -> None:
    tx2 = Simulation([results(100 + 37 * seed % 31) for seed in range(20)]).claims()[0]
    assert tx2.found.low < 1.15 < tx2.found.high
    assert tx2.verdict is Verdict.UNCLEAR


def test_load_is_weighted_by_time() -> None:
    board = BoardResults(BoardKind.AGX, {1: {D: Served(10, 1, 0.5, 1, 0)}, 2: {D: Served(30, 1, 0.9, 1, 0)}})
    simulation = Simulation([board, results(100)])
    assert simulation.load(BoardKind.AGX, D) == pytest.approx([0.8])
