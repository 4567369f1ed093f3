"""A machine's constants out of timings: medians, robust lines, and a doubt where rounds disagree."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.robust import Line, fit_bounded, fit_line
from split_infer_ros.memory_cost.samples import Probe, Samples, Timings

KIB = 2**10
SIZES = tuple(4 * KIB << power for power in range(13))
CACHED_BLOCK = 256 * KIB  # what every GPU's L2 cache holds, and a CPU core's
REREAD_SIZES = tuple(CACHED_BLOCK << power for power in range(9))
ROUNDS = 31
GROUPS = 5  # of rounds, each of which gives the constants once
WIDEST_SPREAD = 0.1
NEGLIGIBLE = 0.05  # a cost of this part of what reading takes anyway cannot be told from noise
REPEATS = 2
MOST_SECONDS = 25.0

Timer = Callable[[Probe, int], float]

# A constant is the slope of one probe's line, or what that has over another's.
_SLOPES: Mapping[str, tuple[Probe, ...]] = {
    "to_device_ms_per_byte": (Probe.TO_DEVICE,),
    "to_host_ms_per_byte": (Probe.TO_HOST,),
    "first_touch_ms_per_byte": (Probe.TOUCH_FRESH, Probe.TOUCH_AGAIN),
    "managed_mapping_ms_per_byte": (Probe.KERNEL_MANAGED, Probe.KERNEL_DEVICE),
    "pinned_mapping_ms_per_byte": (Probe.KERNEL_PINNED, Probe.KERNEL_DEVICE),
    "cache_ms_per_byte": (Probe.REREAD_CACHED,),
    "memory_ms_per_byte": (Probe.REREAD_UNCACHED,),
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
    """Constants and how sure they are.

    Attributes:
        measured: each constant for which there are samples.
        spreads: how far groups of rounds lie from it, in the median, as a part of what it was a difference of.
        samples: what they were found from.
    """

    measured: Mapping[str, float]
    spreads: Mapping[str, float]
    samples: Samples

    @property
    def uncertain(self) -> tuple[str, ...]:
        """Constants whose spread is too wide."""
        return tuple(name for name, spread in self.spreads.items() if not spread <= WIDEST_SPREAD)

    @property
    def doubtful_probes(self) -> tuple[Probe, ...]:
        """What to time again, since an uncertain constant comes of it."""
        return tuple({probe: None for name in self.uncertain for probe in _PROBES[name]})

    @property
    def constants(self) -> MachineConstants:
        """Those that are certain; the others are NaN, and so is what depends on them."""
        return MachineConstants(**{name: self.measured[name] for name in self.measured if name not in self.uncertain})


def calibrate(
    timer: Timer,
    probes: Collection[Probe],
    known: Samples | None = None,
    say: Callable[[str], None] = lambda line: None,
    most_seconds: float = MOST_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Calibration:
    """Time the probes, those again whose rounds disagree (a busy machine), and fit.

    Args:
        timer: the seconds that a probe takes on so many bytes, once.
        probes: what there is to time on this machine.
        known: samples of an earlier time; those probes are timed only if their rounds disagree.
        say: gets a line where something is repeated.
        most_seconds: after which nothing is begun again. A round that was begun is ended.
        clock: seconds, for that alone.
    """
    end = clock() + most_seconds
    samples = {probe: timings for probe, timings in (known or {}).items() if probe in probes}
    samples |= _time(timer, [probe for probe in probes if probe not in samples], end, clock)
    found = fit(samples)
    for _ in range(REPEATS):
        if not found.uncertain or clock() >= end:
            break
        say(f"Rounds disagree about {', '.join(found.uncertain)}: timed again.")
        samples |= _time(timer, found.doubtful_probes, end, clock)
        found = fit(samples)
    return found


def _time(timer: Timer, probes: Collection[Probe], end: float, clock: Callable[[], float]) -> dict[Probe, Timings]:
    """Rounds of all probes and sizes, so that what changes meanwhile changes for all; the first warms up."""
    taken: dict[Probe, dict[int, list[float]]] = {probe: {size: [] for size in sizes(probe)} for probe in probes}
    for turn in range(ROUNDS + 1):
        if turn > GROUPS and clock() >= end:
            break
        for probe, by_size in taken.items():
            for size, seconds in by_size.items():
                found = timer(probe, size)
                if turn:
                    seconds.append(found)
    return {probe: {size: tuple(times) for size, times in by_size.items()} for probe, by_size in taken.items()}


def sizes(probe: Probe) -> Sequence[int]:
    """Bytes with which a probe is timed."""
    return REREAD_SIZES if probe in (Probe.REREAD_CACHED, Probe.REREAD_UNCACHED) else SIZES


def fit(samples: Samples) -> Calibration:
    """The constants that the samples hold, each with its spread; those of probes without samples are left out."""
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


def _spread(value: float, scale: float, others: Sequence[float]) -> float:
    """The median distance of the groups' values, as a part of the scale; infinite if there are too few to tell."""
    if len(others) < GROUPS or not scale > 0:
        return math.inf
    distances = [0.0 if other == value else abs(other - value) for other in others]  # both may be infinite
    return statistics.median(distances) / scale


def _constants(samples: Samples) -> dict[str, tuple[float, float]]:
    """Each constant in its unit, and the cost that it was taken from, by which its scatter is judged."""
    points = {probe: _medians(timings) for probe, timings in samples.items()}
    lines = {probe: fit_line(found) for probe, found in points.items() if len(found) > 1}
    found = {
        name: (_difference([lines[probe].slope for probe in probes]), lines[probes[0]].slope)
        for name, probes in _SLOPES.items()
        if all(probe in lines for probe in probes)
    }
    if _has(lines, "copy_start_ms"):
        start = statistics.mean(lines[probe].start for probe in _PROBES["copy_start_ms"])
        found["copy_start_ms"] = start, start
    if _has(lines, "cpu_flush_ms"):
        starts = [lines[probe].start for probe in _PROBES["cpu_flush_ms"]]
        found["cpu_flush_ms"] = _difference(starts), starts[0]
    if _has(lines, "gpu_flush_ms"):
        plain = lines[Probe.READ_HOST]
        costs = [(size, cost - plain.at(size), cost) for size, cost in points[Probe.READ_MANAGED]]
        slope, bound = fit_bounded(costs)
        if slope < NEGLIGIBLE * plain.slope:
            bound = math.inf
        found["write_back_ms_per_byte"] = slope, slope + plain.slope
        typical = statistics.median(cost for _, _, cost in costs)
        found["gpu_flush_ms"] = bound, typical if math.isinf(bound) else max(bound, typical)
    return found


def _medians(timings: Timings) -> list[tuple[float, float]]:
    """(bytes, ms), smallest first."""
    medians = [(size, 1e3 * statistics.median(costs)) for size, costs in sorted(timings.items()) if costs]
    return [(size, cost) for size, cost in medians if cost > 0]


def _has(lines: Mapping[Probe, Line], name: str) -> bool:
    return all(probe in lines for probe in _PROBES[name])


def _difference(values: Sequence[float]) -> float:
    return values[0] - sum(values[1:])
