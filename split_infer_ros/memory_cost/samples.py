"""The samples of a calibration: how long each probe took. Converts them to and from records of the database."""

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
    """An operation on a number of bytes, which calibration times.

    D, M and H stand for memory of the policies ``device``, ``managed`` and ``pinned``.
    """

    TO_DEVICE = "to_device"  # copies the bytes from the host to D
    TO_HOST = "to_host"  # copies the bytes from D to the host
    TOUCH_FRESH = "touch_fresh"  # the CPU writes the bytes to memory that was never touched
    TOUCH_AGAIN = "touch_again"  # the CPU writes the bytes to the same memory again
    KERNEL_DEVICE = "kernel_device"  # a kernel changes the bytes in D
    KERNEL_MANAGED = "kernel_managed"  # a kernel changes the bytes in M, where the CPU has just written them
    KERNEL_PINNED = "kernel_pinned"  # a kernel changes the bytes in H
    READ_HOST = "read_host"  # the CPU reads the bytes on the host, after a copy from D
    READ_MANAGED = "read_managed"  # the CPU reads the bytes in M, where a kernel has just changed them
    READ_PINNED = "read_pinned"  # the CPU reads the bytes in H, where a kernel has just changed them
    REREAD_CACHED = "reread_cached"  # reads as many bytes again and again from a block that the cache holds
    REREAD_UNCACHED = "reread_uncached"  # reads as many bytes past the cache: in H, or from memory on a CPU


Timings = Mapping[int, tuple[float, ...]]  # for each number of bytes, the seconds of each round
Samples = Mapping[Probe, Timings]


def to_records(samples: Samples, key: Key) -> list[Record]:
    """Returns a record of the database for each probe and number of bytes. ``key`` names the machine."""
    now = time.time()
    return [
        key.record(TASK, {"probe": probe.value, "bytes": size}, costs, time=now)
        for probe, timings in samples.items()
        for size, costs in timings.items()
    ]


def find_samples(database: Database, key: Key) -> dict[Probe, Timings]:
    """Returns the newest samples of each probe that the database has under a machine's key."""
    return from_records(database.find(key, TASK))


def from_records(records: Iterable[Record]) -> dict[Probe, Timings]:
    """Returns the newest samples of each probe in the records. Failed and unknown measurements are left out."""
    samples: dict[Probe, dict[int, tuple[float, ...]]] = {}
    written: dict[Probe, float] = {}
    for record in records:
        probe, size = _parse(record.config)
        if probe is None or record.error is not None:
            continue
        if record.time != written.get(probe):
            written[probe] = record.time
            samples[probe] = {}
        samples[probe][size] = record.costs
    return dict(samples)


def _parse(config: Mapping[str, Any]) -> tuple[Probe | None, int]:
    name, size = config.get("probe"), config.get("bytes")
    if not isinstance(size, int) or size < 1 or name not in [probe.value for probe in Probe]:
        return None, 0
    return Probe(name), size
