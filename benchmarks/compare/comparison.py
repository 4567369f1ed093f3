"""Compares the figures of this tree with those of another commit, and decides whether this tree is not slower."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.common.figures import Better, Figure
from split_infer_ros.measurements.turns import median_interval

LEAST_RATIO, LEAST_MEAN = 0.97, 0.98
LEAST_TURNS = 6  # fewer turns give no interval; see median_interval
RULE = f"no interval lies wholly below {LEAST_RATIO}, and the geometric mean is at least {LEAST_MEAN}"


@dataclass(frozen=True)
class ComparedFigure:
    """A figure of this tree and of the other commit, over all turns.

    Attributes:
        bench: the name of the benchmark.
        name, unit, better: as in ``Figure``.
        this, other: the medians of this tree and of the other commit.
        ratio: how many times better this tree was, as the median over all turns. Above 1, this tree is better.
        low, high: the ends of the ratio's 95 % interval; 0 and infinity for fewer than six turns.
        turns: in how many turns both trees had the figure.
    """

    bench: str
    name: str
    unit: str
    better: Better
    this: float
    other: float
    ratio: float
    low: float
    high: float
    turns: int

    @property
    def is_slower(self) -> bool:
        """True if the whole interval lies below ``LEAST_RATIO``."""
        return self.high < LEAST_RATIO

    def as_json(self) -> dict[str, Any]:
        """Returns the comparison as plain values; infinity becomes None."""
        values = {name: getattr(self, name) for name in ("bench", "name", "unit", "this", "other", "ratio", "low")}
        high = self.high if math.isfinite(self.high) else None
        return {**values, "better": self.better.value, "high": high, "turns": self.turns, "is_slower": self.is_slower}


@dataclass
class Comparison:
    """Collects the figures of both commits, turn by turn.

    Attributes:
        turns: for each benchmark, a pair for each turn: this tree's figures and the other commit's, by name.
    """

    turns: dict[str, list[tuple[dict[str, Figure], dict[str, Figure]]]] = field(default_factory=dict)

    def add(self, bench: str, this: Sequence[Figure], other: Sequence[Figure]) -> None:
        """Adds a turn of a benchmark: the figures of this tree and those of the other commit."""
        pair = {figure.name: figure for figure in this}, {figure.name: figure for figure in other}
        self.turns.setdefault(bench, []).append(pair)

    @property
    def figures(self) -> list[ComparedFigure]:
        """Every figure that both commits had in the same turn."""
        return [figure for bench, turns in self.turns.items() for figure in _compared(bench, turns)]

    @property
    def left_out(self) -> list[str]:
        """The figures that were never compared, as ``BENCHMARK: NAME``. In no turn did both trees have them."""
        compared = {(figure.bench, figure.name) for figure in self.figures}
        return [
            f"{bench}: {name}"
            for bench, turns in self.turns.items()
            for name in dict.fromkeys(name for pair in turns for side in pair for name in side)
            if (bench, name) not in compared
        ]

    @property
    def mean(self) -> float:
        """The geometric mean of all ratios; NaN without figures."""
        ratios = [figure.ratio for figure in self.figures]
        return statistics.geometric_mean(ratios) if ratios else math.nan

    @property
    def is_decided(self) -> bool:
        """True if there are figures and each has enough turns for an interval."""
        figures = self.figures
        return bool(figures) and all(figure.turns >= LEAST_TURNS for figure in figures)

    @property
    def is_not_slower(self) -> bool:
        """True if the comparison is decided, and this tree is not slower according to ``RULE``."""
        slower = [figure for figure in self.figures if figure.is_slower]
        return self.is_decided and not slower and self.mean >= LEAST_MEAN

    def table(self) -> str:
        """Returns all ratios, their geometric mean and the verdict, for people."""
        return "\n".join(self._lines())

    def as_json(self) -> dict[str, Any]:
        """Returns the comparison as plain values."""
        return {
            "figures": [figure.as_json() for figure in self.figures],
            "left_out": self.left_out,
            "geometric_mean": self.mean if math.isfinite(self.mean) else None,
            "rule": RULE,
            "verdict": self.verdict,
        }

    @property
    def verdict(self) -> str:
        """The result in words: ``not decided``, ``not slower`` or ``slower``."""
        if not self.is_decided:
            return "not decided"
        return "not slower" if self.is_not_slower else "slower"

    def _lines(self) -> Iterator[str]:
        figures = self.figures
        width = max((len(figure.name) for figure in figures), default=0)
        bench = ""
        for figure in figures:
            if figure.bench != bench:
                bench = figure.bench
                yield f"{bench}: this / other, above 1 is better ({len(self.turns[bench])} turns)"
            values = f"{figure.this:>9.4g} / {figure.other:<9.4g} {figure.unit:<4}"
            slower = "  SLOWER" if figure.is_slower else ""
            yield f"  {figure.name:<{width}}  {figure.ratio:6.3f}  ({_interval(figure)})  {values}{slower}".rstrip()
        for name in self.left_out:
            yield f"  not compared, because only one commit has it: {name}"
        yield f"Geometric mean of {len(figures)} figures: {self.mean:.3f}"
        if not figures:
            yield "NOT DECIDED: the commits have no figure in common."
        elif not self.is_decided:
            yield f"NOT DECIDED: fewer than {LEAST_TURNS} turns of a figure have no interval."
        else:
            yield f"{self.verdict.upper()}: not slower means that {RULE}."


def _interval(figure: ComparedFigure) -> str:
    return f"{figure.low:.3f} to {figure.high:.3f}" if math.isfinite(figure.high) else "no interval"


def _compared(
    bench: str, turns: Sequence[tuple[Mapping[str, Figure], Mapping[str, Figure]]]
) -> Iterator[ComparedFigure]:
    names = dict.fromkeys(name for this, _ in turns for name in this)
    for name in names:
        pairs = [(this[name], other[name]) for this, other in turns if name in this and name in other]
        if not pairs:
            continue
        first = pairs[0][0]
        these, others = [this.value for this, _ in pairs], [other.value for _, other in pairs]
        ratios = [
            this / other if first.better is Better.HIGHER else other / this
            for this, other in zip(these, others, strict=True)
        ]
        low, high = median_interval(ratios)
        yield ComparedFigure(
            bench,
            name,
            first.unit,
            first.better,
            this=statistics.median(these),
            other=statistics.median(others),
            ratio=statistics.median(ratios),
            low=low,
            high=high,
            turns=len(pairs),
        )
