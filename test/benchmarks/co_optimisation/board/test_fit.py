"""Boards are fitted to Tables I and II of paper 003, and how well shows in the residuals."""

from __future__ import annotations

import math

import pytest

from benchmarks.co_optimisation.board.board import Job
from benchmarks.co_optimisation.board.fit import RANGES, FittedBoard, fit, utilisation
from benchmarks.co_optimisation.board.memory import Memory, fit_memory
from benchmarks.co_optimisation.board.paper import BOARD_MB, PAIRS, PEAK_MB, UTILISATION
from split_infer_ros.buffers.policy import Policy

D, M = Policy.DEVICE, Policy.MANAGED


@pytest.fixture(scope="module")
def fitted() -> FittedBoard:
    return fit(1)


def test_board_agrees_with_table_ii(fitted: FittedBoard) -> None:
    """No utilisation is further off than 3 %, and the root of their mean square is below 2 %."""
    assert len(fitted.residuals) == 9
    assert max(map(abs, fitted.residuals)) < 0.03
    assert math.hypot(*fitted.residuals) / 3 < 0.02


def test_found_figures_are_those_of_the_board(fitted: FittedBoard) -> None:
    """Exact: the same simulation. All kernels run, although the fit joins some."""
    for name in UTILISATION:
        nbytes, launches = fitted.program(name)
        for pair in PAIRS:
            jobs = [Job(policy, nbytes, launches) for policy in pair]
            assert fitted.found[name][pair] == utilisation(fitted.board, jobs)


def test_the_fastest_pair_ends_first(fitted: FittedBoard) -> None:
    """Exact: the same simulation."""
    nbytes, launches = fitted.program("NW")
    ends_ms = {
        pair: max(fitted.board.run([Job(policy, nbytes, launches) for policy in pair]).ends_ms) for pair in PAIRS
    }
    assert ends_ms[fitted.fastest_pair("NW")] == min(ends_ms.values())


def test_a_start_alone_does_not_agree_with_table_ii(fitted: FittedBoard) -> None:
    """A board whose GPU waits four times as long for each launch is refuted by the table."""
    nbytes, launches = fitted.program("NW")
    worse = type(fitted.board)(
        **{name: getattr(fitted.board, name) for name in fitted.board.__dataclass_fields__} | {"launch_ms": 0.05}
    )
    found = utilisation(worse, [Job(D, nbytes, launches)] * 2)
    assert abs(found - UTILISATION["NW"][D, D]) > 0.1


def test_a_seed_is_a_board(fitted: FittedBoard) -> None:
    """Exact: the fit draws nothing but its start. Costs stay near the range of starts, by a factor of ten at most."""
    assert fit(1).costs == fitted.costs
    for name, (low, high) in RANGES.items():
        assert low / 10 < fitted.costs[name] < high * 10, name


def test_memory_agrees_with_table_i() -> None:
    """Two figures for five. The third YOLO under D was not fitted, and it does not fit into the board."""
    memory = fit_memory(PEAK_MB)
    for policy, peaks in PEAK_MB.items():
        for count, peak in enumerate(peaks, 1):
            found = memory.peak_mb(count, policy)
            assert (found > BOARD_MB) is (peak is None)
            if peak is not None:
                assert found == pytest.approx(peak, rel=0.06)


def test_memory_of_exact_figures_is_found() -> None:
    exact = Memory(100.0, 7.0)
    found = fit_memory({policy: [exact.peak_mb(count, policy) for count in (1, 2)] for policy in (D, M)})
    assert (found.base_mb, found.data_mb) == pytest.approx((100.0, 7.0))
