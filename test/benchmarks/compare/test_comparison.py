"""The rule by which a tree is not slower than another commit."""

import json
import math

import pytest

from benchmarks.common.figures import Better, Figure
from benchmarks.compare.comparison import LEAST_TURNS, Comparison


def frames(value: float, name: str = "frames") -> Figure:
    return Figure(name, value, "1/s", Better.HIGHER)


def latency(value: float) -> Figure:
    return Figure("latency", value, "ms", Better.LOWER)


def compared(pairs: list[tuple[list[Figure], list[Figure]]]) -> Comparison:
    comparison = Comparison()
    for this, other in pairs:
        comparison.add("bench", this, other)
    return comparison


def test_a_ratio_above_one_means_better_on_either_side():
    pair = [frames(20.0), latency(5.0)], [frames(10.0), latency(10.0)]
    comparison = compared([pair] * LEAST_TURNS)
    # powers of two: the quotients are exact
    assert [figure.ratio for figure in comparison.figures] == [2.0, 2.0]
    assert comparison.is_not_slower


def test_ratios_are_formed_within_a_turn():
    """The machine doubles its speed from turn to turn, which changes no ratio."""
    pairs = [([frames(2.0**turn)], [frames(2.0**turn)]) for turn in range(LEAST_TURNS)]
    (figure,) = compared(pairs).figures
    assert (figure.low, figure.ratio, figure.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("ratios", "is_not_slower"),
    [
        ([[1.0], [1.0]], True),
        ([[0.9, 0.99], [1.2, 1.2]], True),  # an interval that reaches into what is allowed
        ([[0.96, 0.96], [1.2, 1.2]], False),  # an interval wholly below 0.97
        ([[0.975, 0.975], [0.975, 0.975]], False),  # no such interval, but the mean is below 0.98
        ([[0.975, 0.975], [1.0, 1.0]], True),
    ],
)
def test_the_rule_takes_every_interval_and_the_mean(ratios: list[list[float]], is_not_slower: bool):
    pairs = [
        (
            [frames(values[turn % len(values)], str(index)) for index, values in enumerate(ratios)],
            [frames(1.0, str(index)) for index in range(len(ratios))],
        )
        for turn in range(8)
    ]
    comparison = compared(pairs)
    assert comparison.is_not_slower is is_not_slower
    assert comparison.verdict == ("not slower" if is_not_slower else "slower")


def test_the_mean_is_geometric():
    pair = [frames(2.0, "one"), frames(1.0, "two")], [frames(1.0, "one"), frames(2.0, "two")]
    # a logarithm and its inverse round in the last digits
    assert compared([pair] * LEAST_TURNS).mean == pytest.approx(1.0, abs=1e-12)


def test_few_turns_decide_nothing():
    comparison = compared([([frames(2.0)], [frames(1.0)])] * (LEAST_TURNS - 1))
    (figure,) = comparison.figures
    assert (figure.low, figure.high) == (0.0, math.inf)
    assert not comparison.is_not_slower
    assert "NOT DECIDED" in comparison.table()
    assert json.loads(json.dumps(comparison.as_json(), allow_nan=False))["verdict"] == "not decided"


def test_a_figure_of_one_commit_alone_is_named_and_not_compared():
    comparison = compared([([frames(1.0), frames(1.0, "new")], [frames(1.0), latency(3.0)])] * LEAST_TURNS)
    assert [figure.name for figure in comparison.figures] == ["frames"]
    assert comparison.left_out == ["bench: new", "bench: latency"]
    assert "only one commit has it: bench: new" in comparison.table()


def test_commits_without_a_common_figure_are_not_compared():
    comparison = compared([([frames(1.0)], [latency(1.0)])] * LEAST_TURNS)
    assert not comparison.is_not_slower
    assert "no figure in common" in comparison.table()


def test_the_table_shows_a_figure_that_is_slower():
    table = compared([([frames(9.0), latency(1.0)], [frames(10.0), latency(1.0)])] * LEAST_TURNS).table()
    (line,) = [line for line in table.splitlines() if line.endswith("SLOWER") and "frames" in line]
    assert "0.900" in line
    assert table.splitlines()[-1].startswith("SLOWER: not slower means that no interval lies wholly below 0.97")
