"""What went wrong on a simulated GPU: races, calls that a real one would refuse, and memory that nobody freed."""

from __future__ import annotations

from typing import NoReturn

import torch

from simulated_gpu.clocks import place_of_call
from simulated_gpu.memory_map import MemoryMap, Race

CudaError: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)


class Findings:
    """Collected while a test runs, and raised at its end.

    Attributes:
        memory: with the races in it.
        faults: what a real GPU would have answered with an error, sentences.
        sticky: an error that every call raises from now on.
    """

    def __init__(self) -> None:
        self.memory = MemoryMap()
        self.faults: list[str] = []
        self.sticky = ""

    @property
    def races(self) -> list[Race]:
        """Accesses that nothing orders."""
        return self.memory.races

    def assert_clean(self) -> None:
        """Raise if anything raced, or would have failed on a real GPU."""
        assert not self.faults, self.findings()
        assert not self.races, self.findings()

    def assert_nothing_left(self) -> None:
        """Raise if memory of the host is still page-locked, or managed."""
        left = [region.name for region in self.memory.regions() if region.is_shared]
        assert not left, f"Nobody freed {', '.join(left)}."

    def findings(self) -> str:
        """All that raced or failed, a line each."""
        found = dict.fromkeys([*self.faults, *map(str, self.races)])
        return f"The simulated GPU found {len(found)} faults.\n" + "\n".join(list(found)[:20])

    def error(self, sentence: str) -> RuntimeError:
        """As torch raises it."""
        return CudaError(f"CUDA error: {sentence}")

    def fault(self, sentence: str) -> NoReturn:
        """What a real GPU would answer with an error."""
        self.faults.append(f"{sentence} ({place_of_call()})")
        raise CudaError(f"CUDA error: {sentence}")

    def kernel_failed(self, error: Exception) -> NoReturn:
        """A kernel met values that it cannot bear: nothing works from then on."""
        self.sticky = self.sticky or f"device-side assert triggered ({error})"
        raise self.error(self.sticky)

    def check(self) -> None:
        """Raise the error that sticks, if there is one."""
        if self.sticky:
            raise CudaError(f"CUDA error: {self.sticky}")
