"""Calculates the constants of the overhead model from timings on one machine.

A probe, an operation on a number of bytes, is timed in many rounds. Constants are medians of timings, or come from
lines that outliers hardly move. A constant is uncertain if rounds disagree about it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.line_fits import Line, fit_bounded, fit_line
from split_infer_ros.memory_cost.samples import Probe, Samples, Timings

KIB = 2**10
SIZES = tuple(4 * KIB << power for power in range(13))
CACHED_BLOCK = 256 * KIB  # fits into the L2 cache of every GPU and of a CPU core
REREAD_SIZES = tuple(CACHED_BLOCK << power for power in range(9))
ROUNDS = 31
GROUPS = 5  # the rounds are divided into as many groups; the constants are also calculated for each group
MAX_SPREAD = 0.1
NEGLIGIBLE = 0.05  # a cost below this part of plain reading cannot be told from noise
REPEATS = 2
MAX_SECONDS = 25.0

Timer = Callable[[Probe, int], float]

# Each constant is the slope of the first probe's line minus, if there is a second probe, the slope of its line.
_SLOPES: Mapping[str, tuple[Probe, ...]] = {
    "to_device_ms_per_byte": (Probe.TO_DEVICE,),
    "to_host_ms_per_byte": (Probe.TO_HOST,),
    "first_touch_ms_per_byte": (Probe.TOUCH_FRESH, Probe.TOUCH_AGAIN),
    "managed_mapping_ms_per_byte": (Probe.KERNEL_MANAGED, Probe.KERNEL_DEVICE),
    "pinned_mapping_ms_per_byte": (Probe.KERNEL_PINNED, Probe.KERNEL_DEVICE),
    "cache_ms_per_byte": (Probe.REREAD_CACHED,),
    "memory_ms_per_byte": (Probe.REREAD_UNCACHED,),
    "uncached_read_ms_per_byte": (Probe.READ_PINNED, Probe.READ_HOST),
}
_PROBES: Mapping[str, tuple[Probe, ...]] = {
    **_SLOPES,
    "copy_start_ms": (Probe.TO_DEVICE, Probe.TO_HOST),
    "cpu_flush_ms": (Probe.KERNEL_MANAGED, Probe.KERNEL_DEVICE),
    "write_back_ms_per_byte": (Probe.READ_MANAGED, Probe.READ_HOST),
    "gpu_flush_ms": (Probe.READ_MANAGED, Probe.READ_HOST),
}


@dataclass(frozen=True)
class Calibration:
    """The constants of a machine and how certain they are.

    Attributes:
        measured: the values of all constants for which there are samples, by name.
        spreads: how uncertain each constant is, by name. Each group of rounds gives the constant another value. The
            spread is the median distance of these values, as a share of the cost that the constant was calculated from.
        samples: the timings from which the constants were calculated.
    """

    measured: Mapping[str, float]
    spreads: Mapping[str, float]
    samples: Samples

    @property
    def uncertain(self) -> tuple[str, ...]:
        """The names of the constants with a spread above ``MAX_SPREAD``, or with an unknown one."""
        return tuple(name for name, spread in self.spreads.items() if not spread <= MAX_SPREAD)

    @property
    def doubtful_probes(self) -> tuple[Probe, ...]:
        """The probes on which uncertain constants depend. ``calibrate`` times them again."""
        return tuple({probe: None for name in self.uncertain for probe in _PROBES[name]})

    @property
    def constants(self) -> MachineConstants:
        """The machine's constants. A constant that is uncertain or not measured is NaN."""
        return MachineConstants(**{name: self.measured[name] for name in self.measured if name not in self.uncertain})


def calibrate(
    timer: Timer,
    probes: Collection[Probe],
    *,
    stored: Samples | None = None,
    say: Callable[[str], None] = lambda line: None,
    max_seconds: float = MAX_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Calibration:
    """Times the probes and calculates the constants.

    If rounds disagree about a constant, as on a busy machine, its probes are timed again, ``REPEATS`` times at most.

    Args:
        timer: times a probe once on a number of bytes, and returns the seconds.
        probes: the probes that can be timed on this machine.
        stored: samples of an earlier calibration. A probe that has samples is timed only if its rounds disagree.
        say: called with a line for people whenever probes are timed again.
        max_seconds: how long timing may go on. ``GROUPS`` rounds always run; later ones begin only within this time.
        clock: returns the present time in seconds.
    """
    end = clock() + max_seconds
    samples = {probe: timings for probe, timings in (stored or {}).items() if probe in probes}
    samples |= _time(timer, [probe for probe in probes if probe not in samples], end=end, clock=clock)
    calibration = fit(samples)
    for _ in range(REPEATS):
        if not calibration.uncertain or clock() >= end:
            break
        say(f"Rounds disagree about {', '.join(calibration.uncertain)}: timed again.")
        samples |= _time(timer, calibration.doubtful_probes, end=end, clock=clock)
        calibration = fit(samples)
    return calibration


def _time(timer: Timer, probes: Collection[Probe], *, end: float, clock: Callable[[], float]) -> dict[Probe, Timings]:
    """Times all probes and sizes in rounds, so that a change of the machine's speed affects all of them.

    The first round warms up and does not count.
    """
    taken: dict[Probe, dict[int, list[float]]] = {probe: {size: [] for size in sizes(probe)} for probe in probes}
    for turn in range(ROUNDS + 1):
        if turn > GROUPS and clock() >= end:
            break
        for probe, by_size in taken.items():
            for size, seconds in by_size.items():
                elapsed_s = timer(probe, size)
                if turn:
                    seconds.append(elapsed_s)
    return {probe: {size: tuple(times) for size, times in by_size.items()} for probe, by_size in taken.items()}


def sizes(probe: Probe) -> Sequence[int]:
    """Returns the numbers of bytes on which a probe is timed."""
    return REREAD_SIZES if probe in (Probe.REREAD_CACHED, Probe.REREAD_UNCACHED) else SIZES


def fit(samples: Samples) -> Calibration:
    """Calculates constants and spreads from samples. A constant that needs a probe without samples is left out."""
    values = _constants(samples)
    groups = [
        _constants(
            {
                probe: {size: costs[group::GROUPS] for size, costs in timings.items()}
                for probe, timings in samples.items()
            }
        )
        for group in range(GROUPS)
    ]
    measured = {name: max(value, 0.0) for name, (value, _) in values.items()}
    spreads = {
        name: _spread(value, scale, [group[name][0] for group in groups if name in group])
        for name, (value, scale) in values.items()
    }
    return Calibration(measured, spreads, samples)


def _spread(value: float, scale: float, group_values: Sequence[float]) -> float:
    """Returns the median distance of groups' values from ``value``, as a share of ``scale``.

    The result is infinite if a group has no value, or if ``scale`` is not positive.
    """
    if len(group_values) < GROUPS or not scale > 0:
        return math.inf
    distances = [0.0 if other == value else abs(other - value) for other in group_values]  # inf - inf would be NaN
    return statistics.median(distances) / scale


def _constants(samples: Samples) -> dict[str, tuple[float, float]]:
    """Returns each constant in its unit, and the cost from which it was calculated. That cost scales its spread."""
    points = {probe: _medians(timings) for probe, timings in samples.items()}
    lines = {probe: fit_line(pairs) for probe, pairs in points.items() if len(pairs) > 1}
    constants = {
        name: (_difference([lines[probe].slope for probe in probes]), lines[probes[0]].slope)
        for name, probes in _SLOPES.items()
        if all(probe in lines for probe in probes)
    }
    if _has(lines, "copy_start_ms"):
        start = statistics.mean(lines[probe].start for probe in _PROBES["copy_start_ms"])
        constants["copy_start_ms"] = start, start
    if _has(lines, "cpu_flush_ms"):
        starts = [lines[probe].start for probe in _PROBES["cpu_flush_ms"]]
        constants["cpu_flush_ms"] = _difference(starts), starts[0]
    if _has(lines, "gpu_flush_ms"):
        plain = lines[Probe.READ_HOST]
        costs = [(size, cost - plain.at(size), cost) for size, cost in points[Probe.READ_MANAGED]]
        slope, bound = fit_bounded(costs)
        if slope < NEGLIGIBLE * plain.slope:
            bound = math.inf
        constants["write_back_ms_per_byte"] = slope, slope + plain.slope
        typical = statistics.median(cost for _, _, cost in costs)
        constants["gpu_flush_ms"] = bound, typical if math.isinf(bound) else max(bound, typical)
    return constants


def _medians(timings: Timings) -> list[tuple[float, float]]:
    """Returns pairs of bytes and median ms, the smallest size first. Sizes with a median of 0 are left out."""
    medians = [(size, 1e3 * statistics.median(costs)) for size, costs in sorted(timings.items()) if costs]
    return [(size, cost) for size, cost in medians if cost > 0]


def _has(lines: Mapping[Probe, Line], name: str) -> bool:
    return all(probe in lines for probe in _PROBES[name])


def _difference(values: Sequence[float]) -> float:
    return values[0] - sum(values[1:])
