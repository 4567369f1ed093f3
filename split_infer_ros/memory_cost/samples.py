"""What calibration times, and its form in the tuning database."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Mapping
from typing import Any

from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record

TASK = {"operator": "memory_cost"}


class Probe(enum.Enum):
    """What is timed, for so many bytes; D, M and H are memory under the three policies."""

    TO_DEVICE = "to_device"  # a copy of them, of the host's memory to D
    TO_HOST = "to_host"  # and back
    TOUCH_FRESH = "touch_fresh"  # the CPU writes them, to memory that was never touched
    TOUCH_AGAIN = "touch_again"  # the same once more
    KERNEL_DEVICE = "kernel_device"  # a kernel changes them, in D
    KERNEL_MANAGED = "kernel_managed"  # in M, which the CPU has just written
    KERNEL_PINNED = "kernel_pinned"  # in H
    READ_HOST = "read_host"  # the CPU reads them, as copied from D
    READ_MANAGED = "read_managed"  # in M, which a kernel has just changed
    REREAD_CACHED = "reread_cached"  # so many are read again, within a block that the cache holds
    REREAD_UNCACHED = "reread_uncached"  # likewise, where there is no cache: in H


Timings = Mapping[int, tuple[float, ...]]  # bytes: seconds, one of each round
Samples = Mapping[Probe, Timings]


def to_records(samples: Samples, key: Key) -> list[Record]:
    """One record for each probe and size."""
    now = time.time()
    return [
        Record(key.target, key.versions_for(TASK), TASK, {"probe": probe.value, "bytes": size}, costs, time=now)
        for probe, timings in samples.items()
        for size, costs in timings.items()
    ]


def stored(database: Database, key: Key) -> dict[Probe, Timings]:
    """The samples of this machine in the database: of each probe those that were written last."""
    return from_records(database.find(key, TASK))


def from_records(records: Iterable[Record]) -> dict[Probe, Timings]:
    """Of each probe the samples that were written last."""
    found: dict[Probe, dict[int, tuple[float, ...]]] = {}
    written: dict[Probe, float] = {}
    for record in records:
        probe, size = _place(record.config)
        if probe is None or record.error is not None:
            continue
        if record.time != written.get(probe):
            written[probe], found[probe] = record.time, {}
        found[probe][size] = record.costs
    return dict(found)


def _place(config: Mapping[str, Any]) -> tuple[Probe | None, int]:
    name, size = config.get("probe"), config.get("bytes")
    if not isinstance(size, int) or size < 1 or name not in [probe.value for probe in Probe]:
        return None, 0
    return Probe(name), size
