"""The stopwatch: on this CPU, and on a simulated GPU whose kernels start when Python has launched them."""

from __future__ import annotations

import contextlib

import pytest
import torch

from split_infer_ros.runtime import timing
from split_infer_ros.runtime.timing import Lap, Stopwatch

GPU = torch.device("cuda", 0)
LAUNCH_S, HERTZ = 1e-5, 2e9
PIECES_S = [1e-6, 3e-5, 2e-6, 5e-6]  # most are shorter than their launch


class SimulatedGpu:
    """One stream in virtual time.

    Attributes:
        host_s, device_s: where Python's thread and the stream's work have come to.
        spins: seconds of each kernel that only spins.
    """

    def __init__(self) -> None:
        self.host_s = self.device_s = 0.0
        self.spins: list[float] = []

    def launch(self, seconds: float) -> None:
        self.host_s += LAUNCH_S
        self.device_s = max(self.device_s, self.host_s) + seconds

    def spin(self, cycles: int) -> None:
        self.spins.append(cycles / HERTZ)
        self.launch(cycles / HERTZ)

    def synchronize(self) -> None:
        self.host_s = max(self.host_s, self.device_s)


class SimulatedEvent:
    gpu: SimulatedGpu

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: SimulatedGpu) -> None:
        self.at_s = max(stream.device_s, stream.host_s)

    def query(self) -> bool:
        return self.gpu.host_s >= self.at_s

    def elapsed_time(self, end: SimulatedEvent) -> float:
        return 1e3 * (end.at_s - self.at_s)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimulatedGpu:
    made = SimulatedGpu()
    monkeypatch.setattr(SimulatedEvent, "gpu", made, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", SimulatedEvent)
    monkeypatch.setattr(torch.cuda, "_sleep", made.spin)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: made)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return made


def test_short_kernels_are_timed_without_their_launches(gpu: SimulatedGpu) -> None:
    def work(lap: Lap) -> str:
        for seconds in PIECES_S:
            gpu.launch(seconds)
            lap()
        return "done"

    result, found = Stopwatch(GPU).laps(work)
    assert result == "done"
    assert found == pytest.approx(PIECES_S)  # not bit for bit: sums and differences of virtual times are rounded
    assert len(gpu.spins) == 1


def test_slow_launches_get_a_longer_spin(gpu: SimulatedGpu) -> None:
    watch, runs = Stopwatch(GPU), 0

    def work() -> None:
        nonlocal runs
        runs += 1
        gpu.host_s += 3e-3  # Python is busy for longer than the first spin
        gpu.launch(1e-6)

    assert watch.time(work) == pytest.approx(1e-6)
    assert runs == 3
    watch.time(work)
    assert runs == 4  # the spin stays long
    first, long = timing.MIN_CYCLES / HERTZ, timing.CYCLES_FACTOR * timing.MIN_CYCLES / HERTZ
    assert gpu.spins == [first, first, long, long]


def test_a_slow_first_run_does_not_lengthen_the_spin(gpu: SimulatedGpu) -> None:
    delays = iter([1.0, 0.0])  # kernels are loaded by their first run

    def work() -> None:
        gpu.host_s += next(delays)
        gpu.launch(1e-6)

    assert Stopwatch(GPU).time(work) == pytest.approx(1e-6)
    assert gpu.spins == [timing.MIN_CYCLES / HERTZ] * 2


def test_work_that_waits_for_the_gpu_gets_no_long_spin(gpu: SimulatedGpu) -> None:
    watch = Stopwatch(GPU)

    def work() -> None:
        gpu.launch(1e-6)
        gpu.synchronize()
        gpu.launch(1e-6)

    watch.time(work)
    assert max(gpu.spins) <= timing.MAX_CYCLES / HERTZ
    gpu.spins.clear()
    assert watch.time(work) >= 2e-6
    assert gpu.spins == [timing.MIN_CYCLES / HERTZ]


def test_preparation_is_not_timed(gpu: SimulatedGpu) -> None:
    runs = []

    def prepare() -> None:
        runs.append("prepare")
        gpu.launch(1.0)
        gpu.synchronize()

    def work() -> None:
        runs.append("work")
        gpu.host_s += 3e-3
        gpu.launch(1e-6)

    assert Stopwatch(GPU).time(work, prepare) == pytest.approx(1e-6)
    assert runs == ["prepare", "work"] * 3


def test_a_cpu_reads_its_clock_after_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 11.0, 13.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    prepared = []

    def work(lap: Lap) -> int:
        lap()
        lap()
        return 7

    found = Stopwatch(torch.device("cpu")).laps(work, lambda: prepared.append(1))
    assert found == (7, [1.0, 2.0])  # differences of small whole numbers are exact
    assert prepared == [1]
