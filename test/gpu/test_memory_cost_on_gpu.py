"""The constants of a real GPU: found in time, and such that they tell the policies apart."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from split_infer_ros.buffers import cuda
from split_infer_ros.buffers.memory import Memory
from split_infer_ros.buffers.memory_allocation import allocate
from split_infer_ros.buffers.policy import Policy, legal_policies
from split_infer_ros.measurements.database import Database
from split_infer_ros.memory_cost.choose import choose
from split_infer_ros.memory_cost.gpu_microbenchmarks import GpuMicrobenchmarks
from split_infer_ros.memory_cost.machine import calibrate_machine
from split_infer_ros.memory_cost.samples import Probe
from split_infer_ros.memory_cost.task import feature_task

GPU = torch.device("cuda", 0)
MB = 10**6


def test_calibration_takes_less_than_half_a_minute_and_is_read_from_the_database_then(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuning.jsonl")
    begin = time.monotonic()
    first = calibrate_machine(GPU, database)
    assert time.monotonic() - begin < 30
    allowed = legal_policies(cuda.device_attributes(0))
    assert set(first.measured) - set(first.uncertain) >= {"to_device_ms_per_byte", "to_host_ms_per_byte"}
    if not first.uncertain:
        assert calibrate_machine(GPU, database).samples == first.samples
    choice = choose(feature_task(20 * MB), first.constants, allowed)
    assert choice.policy in allowed
    assert choice.overheads[Policy.DEVICE].total_ms > 0


@pytest.mark.parametrize("probe", Probe)
def test_each_probe_takes_longer_for_more_bytes(probe: Probe) -> None:
    bench = GpuMicrobenchmarks(GPU, legal_policies(cuda.device_attributes(0)))
    if probe not in bench.probes:
        pytest.skip(f"{probe.value} needs a policy that this GPU does not allow")
    few, many = 1 << 18, 1 << 26
    for size in (few, many):
        bench(probe, size)
    fastest = {size: min(bench(probe, size) for _ in range(5)) for size in (few, many)}
    assert 0 < fastest[few] < fastest[many]


def test_kernels_work_on_the_memory_that_the_policy_promises() -> None:
    """What a probe changed on the GPU, the CPU sees afterwards."""
    allowed = legal_policies(cuda.device_attributes(0))
    for policy, probe in ((Policy.MANAGED, Probe.READ_MANAGED), (Policy.PINNED, Probe.KERNEL_PINNED)):
        if policy not in allowed:
            continue
        made: list[Memory] = []

        def note(policy: Policy, nbytes: int, device: torch.device, made: list[Memory] = made) -> Memory:
            made.append(allocate(policy, nbytes, device))
            return made[-1]

        bench = GpuMicrobenchmarks(GPU, [policy], note)
        bench(probe, 1 << 20)
        (memory,) = made
        values = memory.host.view(torch.float32)
        assert values[0] >= 1  # the stopwatch may repeat the kernel, and nobody clears pinned memory in between
        assert (values == values[0]).all()  # exact: sums of a few ones
        assert memory.policy is policy
