"""The arithmetic of the graph tuner (paper 004, §3.2.3). It weighs fast segments against conversions between them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

OptionT = TypeVar("OptionT", bound=Hashable)


def best_chain(
    costs: Sequence[Mapping[OptionT, float]], conversion: Callable[[int, OptionT, OptionT], float]
) -> tuple[float, list[OptionT]]:
    """Chooses an option for each segment of a chain so that segments and conversions together take the least time.

    The result is optimal. Among equally fast choices, it is the first. For each prefix of the chain and each option at
    the prefix's end, only the best choice is kept. The rest of the chain depends on that last option alone. The work
    grows with the number of segments times the square of the number of options.

    Args:
        costs: for each segment in order, the seconds that it takes with each option. Options that do not exist are left
            out, or infinite.
        conversion: called with a segment's index (from 1), the option of the segment before it, and the segment's own
            option. Returns the seconds of the conversion between these options, not negative.

    Returns:
        The seconds of the whole chain, and the option of each segment.

    Raises:
        ValueError: a segment has no option.
    """
    if not all(costs):
        raise ValueError(f"segment {[bool(options) for options in costs].index(False)} has no option")
    best: dict[OptionT, tuple[float, list[OptionT]]] = {}
    for index, options in enumerate(costs):
        if index == 0:
            best = {option: (cost, [option]) for option, cost in options.items()}
            continue
        extended: dict[OptionT, tuple[float, list[OptionT]]] = {}
        for option, cost in options.items():
            total, before = min(
                ((total + conversion(index, last, option), last) for last, (total, _) in best.items()),
                key=lambda candidate: candidate[0],
            )
            extended[option] = total + cost, [*best[before][1], option]
        best = extended
    return min(best.values(), key=lambda candidate: candidate[0], default=(0.0, []))
