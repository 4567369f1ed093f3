"""The arithmetic of the graph tuner (paper 004, §3.2.3). It weighs fast segments against conversions between them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

OptionT = TypeVar("OptionT", bound=Hashable)


def best_chain(
    costs: Sequence[Mapping[OptionT, float]], conversion: Callable[[int, OptionT, OptionT], float]
) -> tuple[float, list[OptionT]]:
    """Chooses an option for each segment of a chain so that the sum of times and conversions is the lowest.

    The result is optimal. Among equal choices, it is the first. For each prefix of the chain and each option at its
    end, only the best choice is kept. The rest of the chain depends on that option alone. The work grows with
    segments x options^2.

    Args:
        costs: for each segment in order, seconds by option. Options that do not exist are left out, or infinite.
        conversion: called with a segment's index (from 1), the option of the segment before and that of the segment.
            Returns the seconds of the conversion between them, not negative.

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
