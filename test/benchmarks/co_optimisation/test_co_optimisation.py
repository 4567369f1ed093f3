"""What is dispatched, how long that takes, and what is claimed of it; real runs use memory of this CPU."""

from __future__ import annotations

import pytest
import torch
from assumed_boards import AGX

from benchmarks.co_optimisation import __main__ as bench
from benchmarks.co_optimisation import measurement, runs
from benchmarks.co_optimisation.real_gpu import RealGpu
from benchmarks.co_optimisation.simulation import MachineKind, MachineResults, Simulation, simulate
from benchmarks.common.claim import Verdict
from benchmarks.common.turns import take_turns
from split_infer_ros.buffers.memory import Memory
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.memory_cost.co_run_schedule import ReleasedTask
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.task import Kernel, Task

# A byte is copied in 1 ms and mapped in 1 ms under M, in 2 under H; a launch under M costs 1 ms besides.
UNIT = MachineConstants(0.0, 1.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 0.0)
D, M = Policy.DEVICE, Policy.MANAGED
TASKS = [
    Task(name, 20, 0, (Kernel(3, mapped_bytes=3, launches=10),), copies=1, execution_ms=ms)
    for name, ms in (("b", 30), ("a", 25))
]
CPU = torch.device("cpu")


def test_schedule_of_a_drawn_example() -> None:
    """O_D = 20, O_M = 40 of which 30 idle. D: a until 45, b until 95. MO: 65, 135. CO: a under D hides in b's idle."""
    served = {name: runs.serve(name, TASKS, runs.SimulatedGpu(UNIT), UNIT, POLICIES) for name in runs.Configuration}
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
    served = runs.serve(runs.MO, tasks, gpu, AGX, POLICIES)
    assert served.memory_bytes == sum(application.task(1 << 20).data_bytes for application in (SMALL, OTHER))
    assert served.total_ms >= served.response_ms > 0


def test_simulation_says_so_in_rows_claims_and_panels() -> None:
    sizes = bench.SIZES[:2]
    simulation = simulate(30, bench.APPLICATIONS, sizes)  # ten of them are GPUs on a bus
    rows = simulation.rows()
    *medians, worst = rows
    assert len(medians) == 2 * len(sizes) * 3
    assert {row["what"] for row in medians} == {"simulated"}
    assert worst["what"] == "simulated, CO over D at most"
    claims = simulation.claims()
    assert len(claims) == 4
    assert all(claim.name.startswith("simulated, 30 machines") for claim in claims)
    assert [claim.found.turns for claim in claims] == [20, 10, 0, 0]  # machines; the worst are counted
    assert all(claim.found.is_sound for claim in claims)
    assert [len(panel.samples) for panel in simulation.panels()] == [3] * 3
    assert all("simulated" in panel.title for panel in simulation.panels())


def served(memory: int, total: float, response: float) -> runs.Served:
    return runs.Served(total, response, 5 / total, memory, 0)


def results_of(response: float, memory: int = 120) -> MachineResults:
    return MachineResults(
        MachineKind.BOARD,
        {1: {runs.D: served(200, 10.0, 6.0), runs.MO: served(100, 12.0, 5.0), runs.CO: served(memory, 9.0, response)}},
    )


def test_claims_of_a_simulation() -> None:
    simulation = Simulation([results_of(6.6), *(results_of(5.0) for _ in range(9))], 1.0)
    boards, bus, *worst = simulation.claims()
    assert (boards.found.value, boards.found.turns, boards.verdict) == (1.2, 10, Verdict.FAILS)
    assert bus.verdict == Verdict.UNCLEAR  # there is none
    assert [claim.found.value for claim in worst] == pytest.approx([0.9, 12 / 9])
    assert [claim.verdict for claim in worst] == [Verdict.HOLDS, Verdict.HOLDS]


def test_co_over_d_is_a_row_and_no_claim() -> None:
    simulation = Simulation([results_of(6.6), results_of(5.0)], 1.0)
    row = simulation.rows()[-1]
    assert [row[name] for name in ("memory", "total", "response")] == pytest.approx([0.6, 0.9, 1.1])
    assert not any("times D's" in claim.name for claim in simulation.claims())


def test_different_machines_leave_a_median_unclear() -> None:
    simulation = Simulation([results_of(5.0, 100 + 37 * seed % 31) for seed in range(20)], 2.0)
    boards = simulation.claims()[0]
    assert boards.found.low < 1.15 < boards.found.high
    assert boards.verdict == Verdict.UNCLEAR
    assert boards.turn_s == 0.1  # seconds a machine


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
