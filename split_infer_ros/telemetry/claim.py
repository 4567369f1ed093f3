"""What a benchmark set out to show, and whether its measurements decide that."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from split_infer_ros.telemetry.estimate import MIN_BLOCKS, Estimate

AT_LEAST, AT_MOST = ">=", "<="
HOLDS, FAILS, UNCLEAR = VERDICTS = ("holds", "does not hold", "unclear")


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure against its goal.

    Attributes:
        name: what was compared, and on what, if that was simulated.
        found: the figure, in ``unit``.
        unit: of the figure and of the goal.
        goal: what the figure is compared with.
        direction: AT_LEAST or AT_MOST.
        floor: below this the figure cannot be, whatever was measured.
        turn_s: seconds that another turn takes; NaN where more turns do not help or their time is not known.
        paper: the paper's own figure for the same, with its unit, as text; empty where it has none.
    """

    name: str
    found: Estimate
    unit: str
    goal: float
    direction: str = AT_LEAST
    floor: float = 0.0
    turn_s: float = math.nan
    paper: str = ""

    @property
    def verdict(self) -> str:
        """HOLDS or FAILS if the whole interval is on that side of the goal, else UNCLEAR.

        Also unclear: fewer than ten independent samples, no number, and a figure that cannot be.
        """
        found = self.found
        if not found.is_sound or found.value < self.floor:
            return UNCLEAR
        ends = {self._reaches(found.low), self._reaches(found.high)}
        return UNCLEAR if len(ends) == 2 else HOLDS if ends == {True} else FAILS

    @property
    def settles_s(self) -> float:
        """For how many seconds rivals would have to take turns until the verdict is clear, as it looks now.

        The interval shrinks with the root of the turns. NaN if the verdict is clear, or no number of turns helps.
        """
        found = self.found
        if self.verdict != UNCLEAR or found.is_exact or found.value < self.floor or not math.isfinite(found.value):
            return math.nan
        distance = abs(found.value - self.goal)
        half = found.high - found.value if found.value < self.goal else found.value - found.low
        if distance == 0:
            return math.nan
        turns = max(float(MIN_BLOCKS), found.turns * max(1.0, half / distance) ** 2)
        return turns * self.turn_s

    def as_json(self) -> dict[str, Any]:
        """The claim in a report: what is no number is None."""
        numbers = {"value": self.found.value, "low": self.found.low, "high": self.found.high}
        return {
            "name": self.name,
            **{key: value if math.isfinite(value) else None for key, value in numbers.items()},
            "turns": self.found.turns,
            "unit": self.unit,
            "goal": f"{self.direction} {self.goal:g}",
            "verdict": self.verdict,
            "settles_s": round(self.settles_s) if math.isfinite(self.settles_s) else None,
            "paper": self.paper,
        }

    def line(self, width: int) -> str:
        """The claim for people, its name filled up to ``width`` letters."""
        found = self.found
        if math.isnan(found.value):
            return f"  {self.name:<{width}}  not measured (goal {self.direction} {self.goal:g})  {self.verdict.upper()}"
        interval = "counted" if found.is_exact else f"{found.low:.3g} to {found.high:.3g}, {found.turns} turns"
        verdict = self.verdict.upper() if self.verdict != HOLDS else HOLDS
        if math.isfinite(self.settles_s):
            verdict += f"; {in_time(self.settles_s)} of turns would settle it"
        goal = f"goal {self.direction} {self.goal:g}"
        return f"  {self.name:<{width}}  {found.value:>9.3g} {self.unit:<4} ({interval}; {goal})  {verdict}"

    def _reaches(self, value: float) -> bool:
        return value <= self.goal if self.direction == AT_MOST else value >= self.goal


def in_time(seconds: float) -> str:
    """A length of time in the largest unit of which it has one."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.2g} {unit}"
    return f"{seconds:.2g} s"
