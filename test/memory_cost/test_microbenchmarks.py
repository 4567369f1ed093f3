"""The probes of a CPU run on this CPU. The probes of a GPU run with memory of this CPU instead."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.memory_cost import cpu_microbenchmarks
from split_infer_ros.memory_cost.calibration import CACHED_BLOCK, sizes
from split_infer_ros.memory_cost.cpu_microbenchmarks import CpuMicrobenchmarks, touch
from split_infer_ros.memory_cost.gpu_microbenchmarks import GpuMicrobenchmarks, reread
from split_infer_ros.memory_cost.samples import Probe

CPU = torch.device("cpu")
SMALL = 64 * 1024


@pytest.mark.parametrize("probe", CpuMicrobenchmarks.probes)
def test_a_cpu_times_its_probes(probe: Probe) -> None:
    bench = CpuMicrobenchmarks()
    for size in (sizes(probe)[0], sizes(probe)[3], sizes(probe)[-1]):
        assert bench(probe, size) > 0


def test_cold_memory_is_not_read_twice_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[int] = []
    monkeypatch.setattr(cpu_microbenchmarks, "read", lambda block: addresses.append(block.ctypes.data))
    bench = CpuMicrobenchmarks()
    size = sizes(Probe.REREAD_UNCACHED)[-1] // 2
    for _ in range(4):
        bench(Probe.REREAD_UNCACHED, size)
    assert len(set(addresses)) == len(addresses) == 4 * size // CACHED_BLOCK
    bench(Probe.REREAD_UNCACHED, size)
    assert addresses[4 * size // CACHED_BLOCK] == addresses[0]


def test_a_first_touch_costs_more_than_a_second() -> None:
    size = 16 * 2**20
    assert min(touch(size, again=False) for _ in range(5)) > min(touch(size, again=True) for _ in range(5))


class FakeMemory:
    """Memory that knows which side owns it, and checks that the other side does not use it."""

    def __init__(self, policy: Policy, nbytes: int) -> None:
        self.policy = policy
        self.nbytes = nbytes
        self._host = torch.zeros(nbytes, dtype=torch.uint8)
        self._device = torch.zeros(nbytes, dtype=torch.uint8) if policy is Policy.DEVICE else self._host
        self.owner = "host"
        self.log: list[str] = []

    @property
    def host(self) -> Tensor:
        assert self.owner == "host"
        return self._host

    @property
    def device(self) -> Tensor:
        if self.policy is Policy.MANAGED:
            assert self.owner == "device"
        return self._device

    def give_to_device(self) -> None:
        self.owner = "device"
        self.log.append(f"device {int(self._host[0])}")

    def give_to_host(self) -> None:
        self.owner = "host"
        self.log.append("host")


class Fakes:
    def __init__(self) -> None:
        self.made: list[FakeMemory] = []

    def __call__(self, policy: Policy, nbytes: int, device: torch.device) -> FakeMemory:
        assert device == CPU
        self.made.append(FakeMemory(policy, nbytes))
        return self.made[-1]


@pytest.mark.parametrize("probe", Probe)
def test_a_gpu_times_probes_in_memory_of_exactly_that_size(probe: Probe) -> None:
    fakes = Fakes()
    bench = GpuMicrobenchmarks(CPU, allocate=fakes)
    assert probe in bench.probes
    for _ in range(2):
        assert bench(probe, SMALL if "reread" not in probe.value else CACHED_BLOCK) > 0
    if "touch" in probe.value:
        assert fakes.made == []  # that is the CPU's alone
        return
    (memory,) = fakes.made  # made once
    assert memory.nbytes == (SMALL if "reread" not in probe.value else CACHED_BLOCK)
    wanted = {"managed": Policy.MANAGED, "pinned": Policy.PINNED, "uncached": Policy.PINNED}
    assert memory.policy is wanted.get(probe.value.split("_")[-1], Policy.DEVICE)
    if memory.policy is Policy.MANAGED:
        assert memory.log == ["device 0", "host"] * 2  # each time the CPU's writes come first


def test_illegal_policies_are_not_allocated() -> None:
    bench = GpuMicrobenchmarks(CPU, [Policy.DEVICE], Fakes())
    assert {probe.value.rpartition("_")[2] for probe in bench.probes}.isdisjoint({"managed", "pinned", "uncached"})
    assert set(GpuMicrobenchmarks(CPU, POLICIES, Fakes()).probes) == set(Probe)


def test_a_block_is_read_repeatedly() -> None:
    block = torch.ones(1024).view(torch.uint8)
    assert reread(block, 8 * block.nbytes).item() == 8 * 1024
