"""Finds the overhead model's constants on this machine. Reuses samples in the database and measures what is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from split_infer_ros.buffers.cuda import device_attributes
from split_infer_ros.buffers.policy import legal_policies
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.memory_cost.calibration import MAX_SECONDS, Calibration, calibrate
from split_infer_ros.memory_cost.cpu_microbenchmarks import CpuMicrobenchmarks
from split_infer_ros.memory_cost.samples import find_samples, to_records
from split_infer_ros.runtime.device import Device

if TYPE_CHECKING:
    from split_infer_ros.memory_cost.gpu_microbenchmarks import GpuMicrobenchmarks


def calibrate_machine(
    device: Device,
    database: Database | None = None,
    *,
    remeasure: bool = False,
    say: Callable[[str], None] = lambda line: None,
    max_seconds: float = MAX_SECONDS,
) -> Calibration:
    """Finds the constants of the overhead model for a device and this host, in less than half a minute.

    New samples go into the database.

    Args:
        device: the device on which backbones run.
        database: the database of measurements; None means the user's own.
        remeasure: whether to time probes again that the database has.
        say: called with a line for people at each step.
        max_seconds: no new round of timing begins after this many seconds.

    Raises:
        ConfigurationError: the GPU has no room for the probes.
    """
    database = database or Database()
    key = Key.here(str(device))
    stored = {} if remeasure else find_samples(database, key)
    bench: CpuMicrobenchmarks | GpuMicrobenchmarks
    if device.type == "cuda":
        from split_infer_ros.memory_cost.gpu_microbenchmarks import GpuMicrobenchmarks  # only here: it imports torch

        bench = GpuMicrobenchmarks(device, legal_policies(device_attributes(device.index)))
    else:
        bench = CpuMicrobenchmarks()
    if not set(bench.probes) <= set(stored):
        say(f"The memory of {device} is timed, which takes some seconds.")
    calibration = calibrate(bench, bench.probes, stored=stored, say=say, max_seconds=max_seconds)
    timed = {probe: timings for probe, timings in calibration.samples.items() if timings is not stored.get(probe)}
    if timed:
        database.keep(to_records(timed, key), "the constants are")
    return calibration
