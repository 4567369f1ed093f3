"""A simulated board of paper 003: CPU and GPU share one memory, and a job's policy decides what its data costs.

The text of the paper says what happens, and this module follows it (§II-B, §III-C, §IV-A and Fig. 6):

- Under D, the data is copied to the GPU's region before the kernels, and back after them.
- Under M, the pages of the data are mapped when the first kernel begins. The GPU is idle, and a kernel of a job under D
  can run. Then the CPU's cache is flushed. After each kernel the GPU's cache is flushed. Nothing overlaps with a flush.
- Under H, pages are mapped as under M. No cache is flushed, because neither cache is used. So kernels read again from
  memory, and the CPU needs longer for the results. With D and M, the CPU's time is small, and it is left out.
- The GPU does one thing at a time, and is never interrupted: it runs a kernel, or data is copied. So two jobs under D
  do not overlap. Before each kernel the GPU waits for the launch.
- The driver does one thing at a time: it maps pages for one job or flushes a cache.

The gauge of the GPU's load counts kernels and copies. The paper has NW slower under D than under M, and yet its load is
higher under D (§III-A). A gauge of kernels alone could not show that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.co_optimisation.board.events import Resource, Step, Trace, simulate
from split_infer_ros.buffers.policy import Policy

_GPU, _DRIVER = (frozenset({each}) for each in (Resource.GPU, Resource.DRIVER))
_FLUSH = _GPU | _DRIVER  # also while a kernel of M runs: no pages of another job are mapped then (III-C)


@dataclass(frozen=True, slots=True)
class Launches:
    """Kernels of a job that are all alike, one after the other.

    Attributes:
        count: how many kernels there are.
        kernel_ms: how long the GPU computes in each kernel.
        nbytes: how many bytes each kernel goes over. It reads and writes them.
        cached_bytes: how many bytes each kernel reads again, from the GPU's cache.
    """

    count: int
    kernel_ms: float = 0.0
    nbytes: float = 0.0
    cached_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """A program that computes on the GPU. Its data comes from the CPU and goes back to the CPU.

    Attributes:
        policy: D, M or H.
        nbytes: the size of the data.
        launches: the kernels.
    """

    policy: Policy
    nbytes: float
    launches: Sequence[Launches]


@dataclass(frozen=True, slots=True)
class Board:
    """The costs of a board.

    Attributes:
        memory_ms_per_byte: the time in which the GPU reads or writes a byte in memory.
        cache_ms_per_byte: the time in which the GPU reads a byte in its cache.
        copy_ms_per_byte: the time in which the copy engine reads a byte and writes it elsewhere.
        copy_start_ms: the time until a copy begins.
        mapping_ms_per_byte: the time in which the driver maps a byte's page.
        cpu_flush_ms, gpu_flush_ms: the time in which the CPU's cache, or the GPU's, is flushed.
        launch_ms: for how long the GPU waits before each kernel.
        kernel_ms: how long the shortest kernel takes.
        uncached_ms_per_byte: how much longer the CPU needs for a byte of the results without its cache.
    """

    memory_ms_per_byte: float
    cache_ms_per_byte: float
    copy_ms_per_byte: float
    copy_start_ms: float
    mapping_ms_per_byte: float
    cpu_flush_ms: float
    gpu_flush_ms: float
    launch_ms: float
    kernel_ms: float
    uncached_ms_per_byte: float

    def run(self, jobs: Sequence[Job]) -> Trace:
        """Runs jobs that begin at once, and returns when each ends."""
        return simulate([self.steps(job) for job in jobs])

    def kernels_ms(self, launches: Sequence[Launches]) -> float:
        """Returns the time of kernels and of the waits for their launches, with all data in the GPU's memory."""
        return sum(each.count * (self.launch_ms + self._kernel_ms(each, Policy.DEVICE)) for each in launches)

    def faster_memory(self, factor: float) -> Board:
        """Returns a board that moves each byte ``factor`` times as fast. The other costs are the same."""
        return replace(
            self,
            memory_ms_per_byte=self.memory_ms_per_byte / factor,
            cache_ms_per_byte=self.cache_ms_per_byte / factor,
            copy_ms_per_byte=self.copy_ms_per_byte / factor,
            mapping_ms_per_byte=self.mapping_ms_per_byte / factor,
            uncached_ms_per_byte=self.uncached_ms_per_byte / factor,
        )

    def steps(self, job: Job) -> Iterator[Step]:
        """Yields what a job does on this board."""
        if job.policy is Policy.DEVICE:
            yield from self.copy(job.nbytes)
            yield from self._kernels(job)
            yield from self.copy(job.nbytes)
            return
        yield Step(job.nbytes * self.mapping_ms_per_byte, _DRIVER)
        if job.policy is Policy.MANAGED:
            yield Step(self.cpu_flush_ms, _FLUSH)
        yield from self._kernels(job)
        if job.policy is Policy.PINNED:
            yield Step(job.nbytes * self.uncached_ms_per_byte)

    def copy(self, nbytes: float) -> Iterator[Step]:
        """Yields a copy to the GPU's region or back. The gauge does not count the time until it begins."""
        moving_ms = nbytes * self.copy_ms_per_byte
        yield Step(self.copy_start_ms + moving_ms, _GPU, self.copy_start_ms, moving_ms)

    def _kernels(self, job: Job) -> Iterator[Step]:
        for each in job.launches:
            kernel_ms = self._kernel_ms(each, job.policy)
            if job.policy is Policy.MANAGED:
                ms, held = self.launch_ms + kernel_ms + self.gpu_flush_ms, _FLUSH
            else:
                ms, held = self.launch_ms + kernel_ms, _GPU
            yield Step(ms, held, self.launch_ms, kernel_ms, each.count)

    def _kernel_ms(self, launches: Launches, policy: Policy) -> float:
        again = self.memory_ms_per_byte if policy is Policy.PINNED else self.cache_ms_per_byte
        passed_ms = 2 * launches.nbytes * self.memory_ms_per_byte + launches.cached_bytes * again
        return max(self.kernel_ms, launches.kernel_ms) + passed_ms
