"""What besides the task a measurement depends on: the machine, and the versions of the software."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from split_infer_ros import __version__
from split_infer_ros.tuning.record import Record, same


@dataclass(frozen=True)
class Key:
    """Records are used where both are exactly their own.

    Attributes:
        target: device, cpu, cores, driver.
        versions: package, torch, cuda.
    """

    target: Mapping[str, Any]
    versions: Mapping[str, Any]

    @classmethod
    def here(cls, device: str) -> Key:
        """This machine's, for a device as torch names it (``cpu``, ``cuda:0``)."""
        # only here: records can be read and judged without torch
        from split_infer_ros.telemetry.machine import cores, cpu_name, gpu_driver, gpu_name, torch_versions

        gpu = gpu_name(device)
        return cls(
            {"device": gpu or "cpu", "cpu": cpu_name(), "cores": cores(), "driver": gpu_driver() if gpu else None},
            {"package": __version__, **torch_versions(device)},
        )

    def fits(self, record: Record) -> bool:
        """True if the record was made on this target with these versions."""
        return same(record.target, self.target) and same(record.versions, self.versions)
