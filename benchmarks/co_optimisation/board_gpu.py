"""Runs the applications of a dispatch on a simulated board, and calibrates the board as a GPU is calibrated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.co_optimisation.board.board import Board, Job, Launches
from benchmarks.co_optimisation.board.events import simulate
from benchmarks.co_optimisation.runs import Application
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_cost.calibration import CACHED_BLOCK, GROUPS, fit, sizes
from split_infer_ros.memory_cost.co_run_schedule import ReleasedTask
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.samples import Probe


class BoardGpu:
    """Runs applications on a simulated board. It keeps the memory of an application and a policy, once allocated.

    Args:
        board: the board.
        applications: the applications, by name.
        size: the size of the input, in bytes.

    Attributes:
        load_ms: for how long the gauge has counted the GPU as loaded.
    """

    def __init__(self, board: Board, applications: Mapping[str, Application], size: int) -> None:
        self._board = board
        self._applications = applications
        self._size = size
        self._allocated: dict[tuple[str, Policy], int] = {}
        self.load_ms = 0.0

    @property
    def memory_bytes(self) -> int:
        """The bytes that are allocated."""
        return sum(self._allocated.values())

    def __call__(self, released: Sequence[ReleasedTask]) -> Sequence[float]:
        """Runs the released tasks. Returns the ms from the release until each task ends."""
        for each in released:
            self._allocated[each.task.name, each.policy] = each.task.footprint_bytes(each.policy)
        trace = self._board.run([job(self._applications[each.task.name], self._size, each.policy) for each in released])
        self.load_ms += trace.load_ms
        return trace.ends_ms

    def execution_ms(self, application: Application) -> float:
        """Returns the ms of an application's kernels with the data in GPU memory."""
        return self._board.kernels_ms(launches(application, self._size))


def job(application: Application, size: int, policy: Policy) -> Job:
    """Returns what an application does on a board, at an input size of ``size`` bytes."""
    return Job(policy, application.nbytes(size), launches(application, size))


def launches(application: Application, size: int) -> Sequence[Launches]:
    """Returns the kernels of an application. The first one goes over all data, each other one over a share."""
    nbytes, again = application.nbytes(size), application.rereads * CACHED_BLOCK
    share = application.share_bytes(nbytes)
    return (
        Launches(1, nbytes=nbytes, cached_bytes=again),
        Launches(application.kernels - 1, nbytes=share, cached_bytes=again),
    )


def calibrate_board(board: Board) -> MachineConstants:
    """Returns the constants that the package's calibration finds on a board. Every round times the same."""
    return fit(
        {probe: {size: (probe_ms(board, probe, size) / 1e3,) * GROUPS for size in sizes(probe)} for probe in Probe}
    ).constants


def probe_ms(board: Board, probe: Probe, nbytes: int) -> float:
    """Returns the milliseconds that a probe of the calibration takes on a board.

    A kernel under M ends before the GPU's cache is flushed, so the CPU's next read waits for the flush. The paper gives
    no time for memory that was never touched, so the CPU writes it as fast as other memory.
    """
    if probe in (Probe.TO_DEVICE, Probe.TO_HOST):
        return simulate([board.copy(nbytes)]).ends_ms[0]
    kernel = (Launches(1, nbytes=nbytes),)
    if probe is Probe.KERNEL_DEVICE:
        return board.kernels_ms(kernel)
    if probe is Probe.KERNEL_MANAGED:
        return board.run([Job(Policy.MANAGED, nbytes, kernel)]).ends_ms[0] - board.gpu_flush_ms
    if probe is Probe.KERNEL_PINNED:
        return board.run([Job(Policy.PINNED, nbytes, kernel)]).ends_ms[0] - nbytes * board.uncached_ms_per_byte
    if probe is Probe.REREAD_CACHED:
        return board.kernels_ms((Launches(1, cached_bytes=nbytes),))
    if probe is Probe.REREAD_UNCACHED:
        return board.run([Job(Policy.PINNED, 0, (Launches(1, cached_bytes=nbytes),))]).ends_ms[0]
    by_cpu_ms = nbytes * board.memory_ms_per_byte
    if probe is Probe.READ_PINNED:
        return by_cpu_ms + nbytes * board.uncached_ms_per_byte
    return by_cpu_ms + (board.gpu_flush_ms if probe is Probe.READ_MANAGED else 0.0)
