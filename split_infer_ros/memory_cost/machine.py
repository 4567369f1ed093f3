"""The constants of this machine: from the database as far as they are there, else measured."""

from __future__ import annotations

from collections.abc import Callable

import torch

from split_infer_ros.buffers.cuda import device_attributes
from split_infer_ros.buffers.policy import legal
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.memory_cost.calibration import MOST_SECONDS, Calibration, calibrate
from split_infer_ros.memory_cost.cpu_microbenchmarks import CpuMicrobenchmarks
from split_infer_ros.memory_cost.gpu_microbenchmarks import GpuMicrobenchmarks
from split_infer_ros.memory_cost.samples import stored, to_records


def calibrate_machine(
    device: torch.device,
    database: Database | None = None,
    anew: bool = False,
    say: Callable[[str], None] = lambda line: None,
    most_seconds: float = MOST_SECONDS,
) -> Calibration:
    """The constants of a device and this host, in less than half a minute; what had to be timed is kept.

    Args:
        device: where backbones run.
        database: the user's own if None.
        anew: time whatever the database has.
        say: told what is being done, a line at a time.
        most_seconds: after which nothing is timed again.

    Raises:
        ConfigurationError: the GPU has no room for what is to be timed.
    """
    database = database or Database()
    key = Key.here(str(device))
    known = {} if anew else stored(database, key)
    bench: CpuMicrobenchmarks | GpuMicrobenchmarks
    if device.type == "cuda":
        bench = GpuMicrobenchmarks(device, legal(device_attributes(device.index)))
    else:
        bench = CpuMicrobenchmarks()
    if not set(bench.probes) <= set(known):
        say(f"The memory of {device} is timed: some seconds.")
    found = calibrate(bench, bench.probes, known, say, most_seconds)
    timed = {probe: timings for probe, timings in found.samples.items() if timings is not known.get(probe)}
    if timed:
        database.keep(to_records(timed, key), "the constants are")
    return found
