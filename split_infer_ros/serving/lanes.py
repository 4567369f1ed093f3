"""How models that run as one share the cores: each lane has some of them and runs its models one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lane:
    """Models that run one after the other, on so many cores."""

    models: tuple[str, ...]
    cores: int


def share_cores(weights_s: Mapping[str, float], cores: int) -> tuple[Lane, ...]:
    """Lanes that end as nearly at the same time as may be, the one with the most work first.

    Where there are more models than cores, each goes, the longest first, to the lane with the least work. Cores beyond
    one a lane go one by one to the lane that would take the longest.

    Args:
        weights_s: seconds that each model's batch takes of one core.
        cores: how many there are, at least 1.
    """
    models: list[list[str]] = [[] for _ in range(min(cores, len(weights_s)))]
    work = [0.0] * len(models)
    for model in sorted(weights_s, key=lambda model: (-weights_s[model], model)):
        lane = work.index(min(work))
        models[lane].append(model)
        work[lane] += weights_s[model]
    given = [1] * len(models)
    for _ in range(cores - len(models)):
        given[max(range(len(models)), key=lambda lane: work[lane] / given[lane])] += 1
    lanes = [(work[index], Lane(tuple(models[index]), given[index])) for index in range(len(models))]
    return tuple(lane for _, lane in sorted(lanes, key=lambda found: -found[0]))
