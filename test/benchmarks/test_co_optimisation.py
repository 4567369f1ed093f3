"""What is dispatched, what it is said to take, and what is claimed of it; real runs with memory of this CPU."""

from __future__ import annotations

import _co_runs as runs
import co_optimisation as bench
import pytest
import torch
from boards import AGX

from split_infer_ros.buffers.memory import Memory
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.memory_model.constants import MachineConstants
from split_infer_ros.memory_model.task import Kernel, Task
from split_infer_ros.tenancy.co_run import Released

# A byte is copied in 1 ms and mapped in 1 ms under M, in 2 under H; a launch under M costs 1 ms besides.
UNIT = MachineConstants(0.0, 1.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 0.0)
D, M = Policy.DEVICE, Policy.MANAGED
TASKS = [Task(name, 20, 0, (Kernel(3),) * 10, copies=1, execution_ms=ms) for name, ms in (("b", 30), ("a", 25))]


def test_a_schedule_that_can_be_drawn_by_hand() -> None:
    """O_D = 20, O_M = 40 of which 30 idle. D: a until 45, b until 95. MO: 65, 135. CO: a under D hides in b's idle."""
    found = {
        name: runs.serve(name, TASKS, runs.PlayedGpu(UNIT), UNIT, POLICIES, 1) for name in runs.CONFIGURATIONS
    }
    expected = {
        runs.D: {"total_ms": 95, "response_ms": (45 + 95) / 2, "memory_bytes": 80, "paired": 0},
        runs.MO: {"total_ms": 135, "response_ms": (65 + 135) / 2, "memory_bytes": 40, "paired": 0},
        runs.CO: {"total_ms": 90, "response_ms": (45 + 90) / 2, "memory_bytes": 60, "paired": 2},
    }
    for name, facts in expected.items():
        assert found[name] == facts | {"configuration": name, "utilisation": 55 / facts["total_ms"]}


def two_sided(policy: Policy, nbytes: int, device: torch.device) -> Memory:
    """Memory of this CPU in the place of a GPU's: with policy device, on two sides."""
    host = torch.zeros(nbytes, dtype=torch.uint8)
    return Memory(policy, host, torch.zeros_like(host) if policy is D else host)


def test_applications_run_and_end_in_the_order_in_which_they_are_read() -> None:
    small, other = runs.Application("small", 0.25, 3, rereads=2), runs.Application("other", 0.5, 1)
    gpu = runs.RealGpu(torch.device("cpu"), {"small": small, "other": other}, 1 << 20, two_sided)
    assert gpu.execution_ms(small, 1) > 0
    tasks = [application.task(1 << 20, 1.0) for application in (small, other)]
    ends = gpu([Released(tasks[0], M), Released(tasks[1], D)])
    assert 0 < ends[1] <= ends[0]
    for name, policy, kernels in (("small", M, 3), ("other", D, 1)):
        assert (gpu._memory[name, policy].host.view(torch.float32) == kernels).all()  # there, changed, and back
    found = runs.serve(runs.MO, tasks, gpu, AGX, POLICIES, 1)
    assert found["memory_bytes"] == sum(application.task(1 << 20).data_bytes for application in (small, other))
    assert found["total_ms"] >= found["response_ms"] > 0


def test_played_rows_bear_the_claims() -> None:
    rows = bench.play(3)  # the third is a GPU on a bus
    assert len(rows) == 3 * len(bench.SIZES) * 3
    assert {row["what"] for row in rows} == {bench.PLAYED}
    claims = bench.conclude(rows)
    assert all(claim.name.startswith("played") for claim in claims)
    assert len(claims) == 7
    assert [len(panel.samples) for panel in bench.panels(rows)] == [3] * 3


def test_what_is_claimed() -> None:
    def row(configuration: str, memory: int, total: float, response: float, busy: float) -> dict[str, object]:
        return {
            "what": bench.MEASURED, "machine": "this", "kind": "this GPU", "bytes": 1, "configuration": configuration,
            "memory_bytes": memory, "total_ms": total, "response_ms": response, "utilisation": busy,
        }  # fmt: skip

    rows = [row(runs.D, 200, 10.0, 6.0, 0.5), row(runs.MO, 100, 12.0, 5.0, 0.4), row(runs.CO, 120, 9.0, 6.6, 0.6)]
    found = [(claim.value, claim.holds) for claim in bench.conclude(rows)]
    assert [value for value, _ in found] == pytest.approx([1.2, 0.6, 0.9, 1.1, 0.9, 1.5])
    assert [holds for _, holds in found] == [False, True, True, False, True, True]
