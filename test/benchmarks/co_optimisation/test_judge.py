"""The boards are judged by figures to which they were not fitted."""

from __future__ import annotations

import pytest
from simulated_board import BOARD

from benchmarks.co_optimisation import __main__ as bench
from benchmarks.co_optimisation.board.fit import RANGES, FittedBoard
from benchmarks.co_optimisation.board.paper import MO_OVER_D, PAIRS, TABLE_V, UTILISATION
from benchmarks.co_optimisation.judge import Judgement, mo_over_d
from benchmarks.co_optimisation.runs import Application
from benchmarks.co_optimisation.simulation import simulate
from benchmarks.common.claim import Verdict

SIZES = bench.SIZES[:1]


def judged(ratio: float, load: float) -> Judgement:
    """Returns a judgement of ten boards that all predict the same."""
    costs = {name: low for name, (low, _) in RANGES.items()}
    fitted = FittedBoard(BOARD, costs, {name: dict.fromkeys(PAIRS, 0.7) for name in UTILISATION})
    loads = {column: dict.fromkeys(by_configuration, [load] * 10) for column, by_configuration in TABLE_V.items()}
    return Judgement([fitted] * 10, [ratio] * 10, loads)


@pytest.mark.parametrize(("miss", "verdict"), [(0.04, Verdict.HOLDS), (-0.04, Verdict.HOLDS), (0.06, Verdict.FAILS)])
def test_a_miss_of_five_hundredths_fails(miss: float, verdict: Verdict) -> None:
    claim = judged(MO_OVER_D + miss, 0.5).claims()[0]
    assert claim.found.value == pytest.approx(abs(miss))
    assert claim.verdict is verdict


def test_each_figure_of_table_v_has_its_claim() -> None:
    claims = judged(0.5, 0.7).claims()[1:]
    papers = [paper for by_configuration in TABLE_V.values() for paper in by_configuration.values()]
    assert [claim.found.value for claim in claims] == pytest.approx([abs(0.7 - paper) for paper in papers])


def test_rows_tell_what_was_judged_and_what_was_fitted() -> None:
    rows = list(judged(0.5, 0.7).rows())
    assert sum("judged" in row["what"] for row in rows) == 1 + 8 + 3
    assert sum("fitted: load" in row["what"] for row in rows) == 9
    assert [row["fails"] for row in rows if "fitted: peak" in row["what"]] == [False, False, True, False, False, False]


def test_predictions_are_those_of_the_boards() -> None:
    fitted = judged(0.5, 0.7).fitted[:1]
    simulated = simulate([BOARD], bench.APPLICATIONS, SIZES)
    found = Judgement.of(fitted, simulated, bench.APPLICATIONS, SIZES)
    assert found.mo_over_d == [mo_over_d(BOARD, bench.APPLICATIONS, SIZES)]
    assert {column: set(loads) for column, loads in found.loads.items()} == {
        column: set(loads) for column, loads in TABLE_V.items()
    }
    assert all(0 < load < 1 for loads in found.loads.values() for (load,) in loads.values())


def test_mo_over_d_of_an_example() -> None:
    """One kernel over 1 MiB. Under D: two copies; under M: pages, and both flushes."""
    size = 1 << 20
    kernel_ms = BOARD.launch_ms + BOARD.kernel_ms + 2 * size * BOARD.memory_ms_per_byte
    device_ms = kernel_ms + 2 * (BOARD.copy_start_ms + size * BOARD.copy_ms_per_byte)
    managed_ms = kernel_ms + size * BOARD.mapping_ms_per_byte + BOARD.cpu_flush_ms + BOARD.gpu_flush_ms
    found = mo_over_d(BOARD, (Application("add", 1, 1),), (size,))
    assert found == pytest.approx(managed_ms / device_ms)
