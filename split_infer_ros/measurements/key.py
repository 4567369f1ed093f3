"""The key of a measurement: the machine, the versions of the software, and the number of the measurement's meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from split_infer_ros.measurements.record import Record, kind_of, same
from split_infer_ros.telemetry.machine import (
    cpu_name,
    engine_version,
    gpu_driver,
    gpu_name,
    instruction_set,
    num_cores,
    torch_versions,
)

# The number of a measurement's meaning, by kind of task. If a change affects what is measured or how, the number is
# raised. Older records are then kept but no longer used. A new version of the package alone invalidates no records.
MEANINGS = {
    "network": 3,  # since 3, batches of several images are timed on lanes, and a configuration has a micro-batch
    "segments": 4,  # since 4, a configuration has a micro-batch
    "pipeline": 4,  # since 4, the configuration of its network has a micro-batch
    "split_points": 4,  # since 4, the configuration of its network has a micro-batch
    "operators": 1,
    "execution": 3,  # since 3, a recorded batch of one model has a graph of its own size if that is at most 8
    "memory_cost": 2,  # since 2, the CPU has just written the data that is copied to the GPU
    "box_nms": 2,  # since 2, both implementations select, sort and suppress
    "pointwise": 1,
    "depthwise": 1,
    "windowed": 1,
    "merged layer": 1,
    "fused layers": 1,
    "pointwise schedule": 1,
    "depthwise schedule": 1,
    "windowed schedule": 1,
}


@dataclass(frozen=True)
class Key:
    """The machine and the versions to which a record must belong. Only records that equal both exactly are used.

    Attributes:
        target: the machine: device, cpu, instruction set, cores, driver.
        versions: the releases of torch and cuda.
    """

    target: Mapping[str, Any]
    versions: Mapping[str, Any]

    @classmethod
    def here(cls, device: str) -> Key:
        """Returns the key of this machine for a device. ``device`` is torch's name, such as ``cpu`` or ``cuda:0``.

        Patch levels of torch and of the driver are left out, so that they do not invalidate records.
        """
        gpu = gpu_name(device)
        driver = gpu_driver() if gpu else None
        target = {
            "device": gpu or "cpu",
            "cpu": cpu_name(),
            "instruction_set": instruction_set(),
            "cores": num_cores(),
            "driver": driver and driver.partition(".")[0],
        }
        return cls(target, torch_versions(device))

    def versions_for(self, task: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns the versions on which a measurement depends: the number of its meaning and the software's versions.

        The number comes from ``MEANINGS``. Versions of engines other than torch are included only if the task or the
        configuration names them. So a new version of an engine invalidates only the records of that engine.

        Args:
            task: what is measured.
            config: the measured configuration; None if it names no engine.
        """
        engines = sorted(_engines_in(task) | _engines_in(config or {}))
        versions = {engine: engine_version(engine) for engine in engines if engine not in self.versions}
        return {"meaning": MEANINGS.get(kind_of(task)), **self.versions, **versions}

    def fits(self, record: Record) -> bool:
        """Returns whether the record has this key's target and versions, and the present number in ``MEANINGS``."""
        return same(record.target, self.target) and same(record.versions, self.versions_for(record.task, record.config))

    def record(
        self,
        task: Mapping[str, Any],
        config: Mapping[str, Any],
        costs: tuple[float, ...],
        *,
        time: float,
        error: str | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> Record:
        """Returns the record of a measurement that was made under this key. For the arguments, see ``Record``."""
        return Record(
            target=self.target,
            versions=self.versions_for(task, config),
            task=task,
            config=config,
            costs=costs,
            error=error,
            time=time,
            facts=facts or {},
        )


def _engines_in(values: Mapping[str, Any]) -> set[str]:
    """Returns the engines that a mapping or a nested mapping names, without their providers."""
    found = set()
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _engines_in(value)
        elif isinstance(value, str) and (name == "engine" or name.endswith("_engine")):
            found.add(value.partition(":")[0])
    return found
