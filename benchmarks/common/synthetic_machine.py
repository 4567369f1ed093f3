"""Simulates a machine whose constants are known, to test whether calibration finds them. Its timings have noise."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.samples import Probe

NS, US, MS = 1e-6, 1e-3, 1.0  # in ms


@dataclass
class SyntheticMachine:
    """A simulated machine. A call returns how long a probe of the calibration takes on it.

    Attributes:
        constants: the constants of the overhead model for this machine.
        seed: the seed of the noise.
        noise: the standard deviation of a timing, as a share of the exact time.
        outliers: the share of timings that are far too long.
        call_ms, kernel_ms_per_byte, host_ms_per_byte: times in ms that a probe takes in addition to those of the
            constants: for a call, and for each byte that a kernel or the CPU goes over.
    """

    constants: MachineConstants
    seed: int
    noise: float = 0.05
    outliers: float = 0.1
    call_ms: float = 10 * US
    kernel_ms_per_byte: float = 0.05 * NS
    host_ms_per_byte: float = 0.1 * NS
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def __call__(self, probe: Probe, nbytes: int) -> float:
        """Returns the seconds that a probe of ``nbytes`` bytes takes, with noise."""
        scatter = max(1 + self.noise * self._random.gauss(0, 1), 0.1)
        if self._random.random() < self.outliers:
            scatter *= self._random.uniform(2, 10)
        return scatter * self.exact_ms(probe, nbytes) / 1e3

    def exact_ms(self, probe: Probe, nbytes: int) -> float:
        """Returns the milliseconds that a probe of ``nbytes`` bytes takes, without noise."""
        c = self.constants
        start, per_byte = {
            Probe.TO_DEVICE: (c.copy_start_ms, c.to_device_ms_per_byte),
            Probe.TO_HOST: (c.copy_start_ms, c.to_host_ms_per_byte),
            Probe.TOUCH_FRESH: (self.call_ms, self.host_ms_per_byte + c.first_touch_ms_per_byte),
            Probe.TOUCH_AGAIN: (self.call_ms, self.host_ms_per_byte),
            Probe.KERNEL_DEVICE: (self.call_ms, self.kernel_ms_per_byte),
            Probe.KERNEL_MANAGED: (
                self.call_ms + c.cpu_flush_ms,
                self.kernel_ms_per_byte + c.managed_mapping_ms_per_byte,
            ),
            Probe.KERNEL_PINNED: (self.call_ms, self.kernel_ms_per_byte + c.pinned_mapping_ms_per_byte),
            Probe.READ_HOST: (self.call_ms, self.host_ms_per_byte),
            Probe.READ_MANAGED: (
                self.call_ms + min(nbytes * c.write_back_ms_per_byte, c.gpu_flush_ms),
                self.host_ms_per_byte,
            ),
            Probe.READ_PINNED: (self.call_ms, self.host_ms_per_byte + c.uncached_read_ms_per_byte),
            Probe.REREAD_CACHED: (self.call_ms, c.cache_ms_per_byte),
            Probe.REREAD_UNCACHED: (self.call_ms, c.memory_ms_per_byte),
        }[probe]
        return start + per_byte * nbytes


def draw_machine(seed: int) -> SyntheticMachine:
    """Draws a random machine. Equal seeds give equal machines.

    With every third seed, the GPU is on a bus, so pages move between two memories. Otherwise, CPU and GPU share one
    memory.
    """
    draw = random.Random(seed)

    def log_uniform(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    cache = log_uniform(0.02, 0.1) * NS
    return SyntheticMachine(
        MachineConstants(
            copy_start_ms=log_uniform(8, 60) * US,
            to_device_ms_per_byte=log_uniform(0.04, 0.4) * NS,
            to_host_ms_per_byte=log_uniform(0.04, 0.4) * NS,
            first_touch_ms_per_byte=log_uniform(0.1, 0.6) * NS,
            managed_mapping_ms_per_byte=log_uniform(0.05, 0.4) * NS,
            pinned_mapping_ms_per_byte=log_uniform(0.05, 0.4) * NS,
            cpu_flush_ms=log_uniform(20, 100) * US,
            gpu_flush_ms=math.inf if seed % 3 == 2 else log_uniform(100, 400) * US,
            write_back_ms_per_byte=log_uniform(0.2, 0.6) * NS,
            memory_ms_per_byte=cache * log_uniform(2, 6),
            cache_ms_per_byte=cache,
            uncached_read_ms_per_byte=log_uniform(0.05, 0.5) * NS,
        ),
        seed,
    )
