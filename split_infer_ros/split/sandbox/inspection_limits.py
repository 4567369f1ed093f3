"""How much memory and time the inspection of a model file may take."""

from __future__ import annotations

import os
from dataclasses import dataclass

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.shortage import host_bytes_free

MEMORY_VARIABLE, TIME_VARIABLE = "SPLIT_INFER_ROS_INSPECTION_MB", "SPLIT_INFER_ROS_INSPECTION_S"
BASE_BYTES, BYTES_PER_BYTE = 2 << 30, 16  # memory for any file, and for each byte of the file
MAX_SHARE_OF_FREE = 0.9
BASE_S, BYTES_PER_S = 120.0, 10e6


@dataclass(frozen=True, slots=True)
class InspectionLimits:
    """The memory and the time that an inspection may take.

    Attributes:
        memory_bytes: memory in addition to what the process has before it reads the file.
        seconds: the time for the whole inspection.
    """

    memory_bytes: int
    seconds: float

    @classmethod
    def of(cls, nbytes: int) -> InspectionLimits:
        """Returns the limits for a file of ``nbytes`` bytes, or those that the user set in the environment.

        Raises:
            ConfigurationError: a value that the user set is not a positive number.
        """
        memory = min(BASE_BYTES + BYTES_PER_BYTE * nbytes, int(MAX_SHARE_OF_FREE * host_bytes_free()))
        seconds = BASE_S + nbytes / BYTES_PER_S
        megabytes = _number(MEMORY_VARIABLE)
        return cls(memory if megabytes is None else int(1e6 * megabytes), _number(TIME_VARIABLE) or seconds)


def _number(variable: str) -> float | None:
    """Returns a number from the environment; None if the variable is not set."""
    text = os.environ.get(variable, "")
    try:
        if not text or 0 < (number := float(text)) < 1e12:
            return number if text else None
    except ValueError:
        pass
    raise ConfigurationError(f"{variable} is '{text}'; it takes a positive number.")
