"""Compares a measured figure with its goal and decides whether a benchmark's claim holds."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

from benchmarks.common.estimate import MIN_BLOCKS, Estimate


class Direction(str, enum.Enum):
    """On which side of its goal a figure should lie: above it or below it. The goal itself is enough."""

    AT_LEAST = ">="
    AT_MOST = "<="


class Verdict(str, enum.Enum):
    """Whether a claim holds. The whole confidence interval decides; see ``Claim.verdict``."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Claim:
    """A measured figure and the goal that it should reach.

    Attributes:
        name: says what was compared. If the comparison was simulated, the name says so, and on what.
        found: the measured figure, in ``unit``.
        unit: the unit of the figure and of the goal.
        goal: the value with which the figure is compared.
        direction: on which side of the goal the figure should lie.
        floor: the smallest possible value. A figure below the floor is a measuring error.
        turn_s: the seconds that one more turn takes; NaN if they are unknown or if more turns do not help.
        paper: the paper's figure for the same comparison, as text with its unit; empty if the paper has none.
    """

    name: str
    found: Estimate
    unit: str
    goal: float
    direction: Direction = Direction.AT_LEAST
    floor: float = 0.0
    turn_s: float = math.nan
    paper: str = ""

    @property
    def verdict(self) -> Verdict:
        """HOLDS if the whole interval reaches the goal, FAILS if the whole interval misses it, else UNCLEAR.

        A claim is also unclear if its figure is not a number, lies below ``floor``, or has fewer than ten independent
        samples.
        """
        found = self.found
        if not found.is_sound or found.value < self.floor:
            return Verdict.UNCLEAR
        low_reaches, high_reaches = self._reaches(found.low), self._reaches(found.high)
        if low_reaches != high_reaches:
            return Verdict.UNCLEAR
        return Verdict.HOLDS if low_reaches else Verdict.FAILS

    @property
    def settles_s(self) -> float:
        """The estimated seconds of further turns that give a clear verdict.

        NaN if the verdict is clear, or if no number of turns helps.

        The estimate assumes that the interval shrinks with the square root of the number of turns.
        """
        found = self.found
        if (
            self.verdict is not Verdict.UNCLEAR
            or found.is_exact
            or found.value < self.floor
            or not math.isfinite(found.value)
        ):
            return math.nan
        distance = abs(found.value - self.goal)
        half_width = found.high - found.value if found.value < self.goal else found.value - found.low
        if distance == 0:
            return math.nan
        turns = max(float(MIN_BLOCKS), found.turns * max(1.0, half_width / distance) ** 2)
        return turns * self.turn_s

    def as_json(self) -> dict[str, Any]:
        """Returns the claim as plain values for a report; NaN and infinite numbers become None."""
        numbers = {"value": self.found.value, "low": self.found.low, "high": self.found.high}
        return {
            "name": self.name,
            **{key: value if math.isfinite(value) else None for key, value in numbers.items()},
            "turns": self.found.turns,
            "unit": self.unit,
            "goal": f"{self.direction.value} {self.goal:g}",
            "verdict": self.verdict.value,
            "settles_s": round(self.settles_s) if math.isfinite(self.settles_s) else None,
            "paper": self.paper,
        }

    def line(self, width: int) -> str:
        """Returns the claim as a line for people, with its name padded to ``width`` characters."""
        found = self.found
        goal = f"goal {self.direction.value} {self.goal:g}"
        if math.isnan(found.value):
            return f"  {self.name:<{width}}  not measured ({goal})  {self.verdict.value.upper()}"
        interval = "counted" if found.is_exact else f"{found.low:.3g} to {found.high:.3g}, {found.turns} turns"
        verdict = self.verdict.value
        if self.verdict is not Verdict.HOLDS:
            verdict = verdict.upper()
        if math.isfinite(self.settles_s):
            verdict += f"; {format_duration(self.settles_s)} of turns would settle it"
        return f"  {self.name:<{width}}  {found.value:>9.3g} {self.unit:<4} ({interval}; {goal})  {verdict}"

    def _reaches(self, value: float) -> bool:
        return value <= self.goal if self.direction is Direction.AT_MOST else value >= self.goal


def format_duration(seconds: float) -> str:
    """Returns a duration in the largest unit that it fills: hours, minutes or seconds."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.2g} {unit}"
    return f"{seconds:.2g} s"
