"""Says which processor of a machine is too hot. It has no clock: callers pass the times."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from split_infer_ros.telemetry.sensors import Reading, SensorUnit

HYSTERESIS_C = 5.0  # a hot processor has cooled once it is this much below the bound
MAX_SILENT_S = 30.0  # a hot processor whose sensors are silent for so long does not count as hot any more


class Processor(enum.Enum):
    """A kind of processor whose temperature counts."""

    CPU = "CPU"
    GPU = "GPU"


# The names of sensors on x86, Jetson, Raspberry Pi and Rockchip. Others show disks, chargers or the air.
_SENSORS = {Processor.GPU: re.compile(r"gpu"), Processor.CPU: re.compile(r"cpu|x86_pkg_temp|core|^soc")}


def processor_of(reading: Reading) -> Processor | None:
    """Returns the processor whose temperature a sensor shows; None if it shows something else."""
    if reading.unit is not SensorUnit.CELSIUS:
        return None
    name = reading.name.lower()
    return next((processor for processor, pattern in _SENSORS.items() if pattern.search(name)), None)


@dataclass(frozen=True, slots=True)
class Heat:
    """The temperatures of the processors, held against a bound.

    Attributes:
        bound_c: the highest temperature that is not hot, in C; 0: there is no bound.
        hottest: the hottest sensor of the hot processor, or else of all processors; None: no sensor has answered.
        hot: the processor that is too hot; None: there is none.
        since_s: when ``hottest`` was read, in seconds.
    """

    bound_c: float = 0.0
    hottest: Reading | None = None
    hot: Processor | None = None
    since_s: float = -math.inf

    def after(self, readings: Sequence[Reading], bound_c: float, now: float) -> Heat:
        """Returns what holds after further readings.

        A processor is hot from above the bound until ``HYSTERESIS_C`` below it. Meanwhile no other one counts as hot,
        so that choices do not go back and forth between two hot processors.

        Args:
            readings: the readings of all sensors.
            bound_c: the highest temperature that is not hot, in C; 0: no bound.
            now: when they were read, in seconds.
        """
        if not bound_c:
            return Heat()
        found = {reading: processor for reading in readings if (processor := processor_of(reading)) is not None}
        of_hot = [reading for reading, processor in found.items() if processor is self.hot]
        if self.hot is not None and not of_hot and now - self.since_s < MAX_SILENT_S:
            return Heat(bound_c, self.hottest, self.hot, self.since_s)
        if of_hot and max(map(_value, of_hot)) > bound_c - HYSTERESIS_C:
            return Heat(bound_c, max(of_hot, key=_value), self.hot, now)
        hottest = max(found, key=_value, default=None)
        is_hot = hottest is not None and hottest.value > bound_c
        return Heat(bound_c, hottest, found[hottest] if hottest is not None and is_hot else None, now)

    def hot_for(self, device_type: str) -> Processor | None:
        """Returns the hot processor if a model whose backbone runs on a device uses it. All models use the CPU.

        Args:
            device_type: the type of the device, ``cpu`` or ``cuda``.
        """
        return None if self.hot is Processor.GPU and device_type == "cpu" else self.hot

    def text(self, device_type: str) -> str:
        """Returns what the user of a model should know; empty if there is no bound.

        Args:
            device_type: the type of the device on which its backbone runs.
        """
        if not self.bound_c:
            return ""
        bound = f"max_temperature_c {self.bound_c:g}"
        if self.hottest is None:
            return f"no sensor of a processor's temperature answers, so {bound} has no effect"
        shown = f"{self.hottest.name} shows {self.hottest.value:.1f} C"
        if self.hot is None:
            return f"{shown}, within {bound}"
        if self.hot_for(device_type) is None:
            return f"{shown}, too hot for {bound}, but this model does not run there"
        until = f"until it shows {self.bound_c - HYSTERESIS_C:g} C"
        return f"{shown}, too hot for {bound}: what needs less time of the {self.hot.value} is preferred {until}"


def _value(reading: Reading) -> float:
    return reading.value
