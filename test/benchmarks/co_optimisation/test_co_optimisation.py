"""What is dispatched, how long that takes, and what is claimed of it; real runs use memory of this CPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from assumed_boards import AGX

from benchmarks.co_optimisation import measurement, runs
from benchmarks.co_optimisation.real_gpu import RealGpu
from benchmarks.common.claim import Verdict
from benchmarks.common.turns import take_turns
from split_infer_ros.buffers.memory import Memory
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.memory_cost.co_run_schedule import ReleasedTask, co_run_ms
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.overhead import overhead, response_ms
from split_infer_ros.memory_cost.task import Kernel, Task

# A byte is copied in 1 ms and mapped in 1 ms under M, in 2 under H; a launch under M costs 1 ms besides.
UNIT = MachineConstants(0.0, 1.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
D, M = Policy.DEVICE, Policy.MANAGED
TASKS = [
    Task(name, 20, 0, (Kernel(3, mapped_bytes=3, launches=10),), copies=1, execution_ms=ms)
    for name, ms in (("b", 30), ("a", 25))
]
CPU = torch.device("cpu")


class UnitGpu:
    """Takes as long as the overhead model says with the constants ``UNIT``."""

    def __call__(self, released: Sequence[ReleasedTask]) -> Sequence[float]:
        alone_ms = [response_ms(each.task, overhead(each.task, each.policy, UNIT)) for each in released]
        if len(released) == 1:
            return alone_ms
        tasks = {each.policy: each.task for each in released}
        pair_ms = co_run_ms(tasks[D], tasks[M], UNIT)
        return [alone if each.policy is D else pair_ms for each, alone in zip(released, alone_ms, strict=True)]


def test_schedule_of_a_drawn_example() -> None:
    """O_D = 20, O_M = 40 of which 30 idle. D: a until 45, b until 95. MO: 65, 135. CO: a under D hides in b's idle."""
    served = {each: runs.serve(runs.SCHEDULERS[each], TASKS, UnitGpu(), UNIT, POLICIES) for each in runs.Configuration}
    assert served == {
        runs.D: runs.Served(95, (45 + 95) / 2, 55 / 95, 80, 0),
        runs.MO: runs.Served(135, (65 + 135) / 2, 55 / 135, 40, 0),
        runs.CO: runs.Served(90, (45 + 90) / 2, 55 / 90, 60, 2),
    }


def two_sided(policy: Policy, nbytes: int, device: torch.device) -> Memory:
    """Memory of this CPU in place of a GPU's; under policy device it has two sides."""
    host = torch.zeros(nbytes, dtype=torch.uint8)
    return Memory(policy, host, torch.zeros_like(host) if policy is D else host)


SMALL, OTHER = runs.Application("small", 0.25, 3, rereads=2), runs.Application("other", 0.5, 1)


def gpu_with_cpu_memory(size: int) -> RealGpu:
    return RealGpu(CPU, {"small": SMALL, "other": OTHER}, size, two_sided)


def test_applications_end_in_the_order_of_reading() -> None:
    gpu = gpu_with_cpu_memory(1 << 20)
    assert gpu.execution_ms(SMALL, 1) > 0
    tasks = [application.task(1 << 20, 1.0) for application in (SMALL, OTHER)]
    ends = gpu([ReleasedTask(tasks[0], M), ReleasedTask(tasks[1], D)])
    assert 0 < ends[1] <= ends[0]
    for name, policy, kernels in (("small", M, 3), ("other", D, 1)):
        assert (gpu.memory_of(name, policy).host.view(torch.float32) == kernels).all()  # there, changed, and back
    served = runs.serve(runs.SCHEDULERS[runs.MO], tasks, gpu, AGX, POLICIES)
    assert served.memory_bytes == sum(application.task(1 << 20).data_bytes for application in (SMALL, OTHER))
    assert served.total_ms >= served.response_ms > 0


def measured(size: int) -> measurement.SizeContest:
    """A contest of two applications on memory of this CPU."""
    return measurement.SizeContest(size, (SMALL, OTHER), gpu_with_cpu_memory(size), AGX, POLICIES)


def test_measurement_runs_all_configurations_in_each_turn() -> None:
    contests = [measured(1 << 20), measured(1 << 21)]
    take_turns([each.contest for each in contests], 0.0)
    rows = [row for each in contests for row in each.rows()]
    assert [row["configuration"] for row in rows] == [configuration.value for configuration in runs.Configuration] * 2
    assert all(row["total_ms"] > 0 and row["peak_mb"] > 0 and row["turns"] == 1 for row in rows)
    assert [len(panel.samples) for panel in measurement.panels(contests)] == [3] * 3
    assert all(claim.name.startswith("measured") for claim in measurement.conclude(contests))


def test_worst_size_decides_the_claims_of_a_measurement() -> None:
    contests = [measured(1 << 20), measured(1 << 21)]
    times = {runs.D: 10.0, runs.MO: 12.0, runs.CO: 9.0}
    for contest, response in zip(contests, (5.0, 6.6), strict=True):
        contest.memory_bytes = {runs.D: 200, runs.MO: 100, runs.CO: 120}
        for name, total in times.items():
            contest.contest.figures |= {
                measurement.figure(name, measurement.TOTAL): [total] * 10,
                measurement.figure(name, measurement.RESPONSE): [response if name == runs.CO else 6.0] * 10,
                measurement.figure(name, measurement.UTILISATION): [5 / total] * 10,
            }
    claims = measurement.conclude(contests)
    assert [claim.found.value for claim in claims] == pytest.approx([1.2, 0.9, 1.1, 0.9, 12 / 9])
    assert [claim.verdict for claim in claims] == [
        Verdict.FAILS,
        Verdict.HOLDS,
        Verdict.FAILS,
        Verdict.HOLDS,
        Verdict.HOLDS,
    ]
