"""Times one call alone, or rivals in turns. With turns, a machine that gets slower does so for all rivals."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

GROUP_S = 0.15  # a group of samples takes at least this long
MAX_SAMPLES = 20  # the most samples in a group
TURN_S = 0.05  # a group of samples of one rival in a turn takes at least this long
MAX_TURNS = 25
CONFIDENCE = 0.95

Run = Callable[[], object]


def timed(run: Run, group_s: float | None = None) -> list[float]:
    """Calls ``run`` again and again, and returns the seconds of each call.

    There is at least one call, and there are at most ``MAX_SAMPLES``. The calls end once they took ``group_s`` seconds
    together; None stands for ``GROUP_S``.
    """
    group_s = GROUP_S if group_s is None else group_s
    samples: list[float] = []
    while not samples or (sum(samples) < group_s and len(samples) < MAX_SAMPLES):
        begin = time.perf_counter()
        run()
        samples.append(time.perf_counter() - begin)
    return samples


def timed_in_turns(rivals: Mapping[str, Run], may_go_on: Callable[[], bool] = lambda: True) -> dict[str, list[float]]:
    """Times rivals in turns. In each turn, every rival is timed. Each turn begins with another rival.

    Args:
        rivals: the calls to time, by the rival's name. In each turn, each call runs once untimed before it is timed.
        may_go_on: called before each turn after the first; False ends the measurement. There are at most ``MAX_TURNS``
            turns.

    Returns:
        For each rival by name, the median seconds of its calls in each turn.
    """
    found: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(MAX_TURNS):
        if turn and not may_go_on():
            break
        names, start = list(rivals), turn % len(rivals)
        for name in names[start:] + names[:start]:
            rivals[name]()
            found[name].append(statistics.median(timed(rivals[name], TURN_S)))
    return found


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the lower and the upper end of the median's 95 % confidence interval.

    It holds for any distribution of the values. The number of values below the median is binomial, so two
    of the sorted values are the ends. With fewer than six values, the ends are 0 and infinity.
    """
    count = len(values)
    outside, place = 0.0, -1  # place: the index of the lower end among the sorted values
    while place + 1 < count / 2:
        outside += 2 * math.comb(count, place + 1) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        place += 1
    if place < 0:
        return 0.0, math.inf
    ordered = sorted(values)
    return ordered[place], ordered[count - 1 - place]
