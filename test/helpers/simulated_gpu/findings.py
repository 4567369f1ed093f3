"""What went wrong on a simulated GPU: races, calls that a real GPU would refuse, and leaked memory."""

from __future__ import annotations

from typing import NoReturn

import torch

from simulated_gpu.clocks import place_of_call
from simulated_gpu.memory_map import MemoryMap, Race

CudaError: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)


class Findings:
    """Collects what goes wrong while a test runs, and raises it at the end of the test.

    Attributes:
        memory: all memory that the GPU can reach, with the races that were found.
        faults: a sentence for each call to which a real GPU would have answered with an error.
        sticky: the text of an error that every call raises from now on; empty if there is none.
    """

    def __init__(self) -> None:
        self.memory = MemoryMap()
        self.faults: list[str] = []
        self.sticky = ""

    @property
    def races(self) -> list[Race]:
        """The pairs of accesses that nothing orders."""
        return self.memory.races

    def assert_clean(self) -> None:
        """Raises AssertionError if there was a race, or if a call would have failed on a real GPU."""
        assert not self.faults, self.findings()
        assert not self.races, self.findings()

    def assert_nothing_left(self) -> None:
        """Raises AssertionError if memory that the host can reach is still page-locked or managed."""
        left = [region.name for region in self.memory.regions() if region.is_shared]
        assert not left, f"Nobody freed {', '.join(left)}."

    def findings(self) -> str:
        """Returns the races and faults, one on each line, at most 20."""
        found = dict.fromkeys([*self.faults, *map(str, self.races)])
        return f"The simulated GPU found {len(found)} faults.\n" + "\n".join(list(found)[:20])

    def error(self, sentence: str) -> RuntimeError:
        """Returns an error like those of CUDA that torch raises."""
        return CudaError(f"CUDA error: {sentence}")

    def fault(self, sentence: str) -> NoReturn:
        """Records in ``faults``, and raises, an error that a real GPU would return."""
        self.faults.append(f"{sentence} ({place_of_call()})")
        raise CudaError(f"CUDA error: {sentence}")

    def kernel_failed(self, error: Exception) -> NoReturn:
        """Raises the error of a kernel that failed. Every later call raises it as well."""
        self.sticky = self.sticky or f"device-side assert triggered ({error})"
        raise self.error(self.sticky)

    def check(self) -> None:
        """Raises the sticky error, if there is one."""
        if self.sticky:
            raise CudaError(f"CUDA error: {self.sticky}")
