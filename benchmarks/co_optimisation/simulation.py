"""Applications that share a simulated GPU.

It shows what the scheduler decides, and what its decisions are worth if the overhead model is right.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from benchmarks.co_optimisation.runs import CO, MO, Application, Configuration, D, Served, SimulatedGpu, serve
from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import Estimate, Samples, estimate, exact
from benchmarks.common.report import Panel
from benchmarks.common.rows import measured
from benchmarks.common.synthetic_machine import SyntheticMachine, draw_machine
from split_infer_ros.buffers.policy import POLICIES

SIMULATED = "simulated"


class MachineKind(Enum):
    """How a machine's GPU reaches the memory of the CPU."""

    BOARD = "boards with one memory"
    BUS = "GPUs on a bus"


ByConfiguration = Mapping[Configuration, Served]
Part = Callable[[ByConfiguration], float]


@dataclass(frozen=True)
class MachineResults:
    """How a synthetic machine served all applications.

    Attributes:
        kind: the kind of the machine.
        served: how the applications were served, by input size in bytes, then by configuration.
    """

    kind: MachineKind
    served: Mapping[int, ByConfiguration]


@dataclass(frozen=True)
class Simulation:
    """The results of all synthetic machines.

    Attributes:
        machines: the results of each machine. All are for the same input sizes.
        seconds: how long the simulation took.
    """

    machines: Sequence[MachineResults]
    seconds: float

    def claims(self) -> list[Claim]:
        """Returns the claims about CO.

        One is about its memory as a multiple of MO's: the median over machines and sizes. The others are about the
        worst case against MO and D. A median has an interval, because each machine is a sample of the machines that
        there may be. The worst case is exact: these machines are the same in every run.

        CO against D alone is a row and no claim. The scheduler lets no task end later than under D, and the simulated
        GPU takes as long as the scheduler's equations say. D's memory is the most that any policy takes.
        """
        return [
            *(self._memory(kind) for kind in MachineKind),
            self._worst("time, times the better one's, at most", times_the_better),
            self._worst(
                "GPU utilisation, times MO's, at least",
                lambda served: served[CO].utilisation / served[MO].utilisation,
                "1.10 and 1.33 x",
                Direction.AT_LEAST,
            ),
        ]

    def _memory(self, kind: MachineKind) -> Claim:
        machines = [machine for machine in self.machines if machine.kind is kind]
        name = f"{self._name}, {kind.value}: CO's memory, times MO's, median"
        turn_s = self.seconds / len(machines) if machines else math.nan
        return Claim(name, times_managed_memory(machines), "x", 1.15, Direction.AT_MOST, turn_s=turn_s)

    def _worst(self, what: str, part: Part, paper: str = "", direction: Direction = Direction.AT_MOST) -> Claim:
        parts = self._parts(part)
        value = max(parts) if direction == Direction.AT_MOST else min(parts)
        return Claim(f"{self._name}: CO's {what}", exact(value), "x", 1.0, direction, paper=paper)

    def _parts(self, part: Part) -> list[float]:
        return [part(served) for machine in self.machines for served in machine.served.values()]

    @property
    def _name(self) -> str:
        return f"{SIMULATED}, {len(self.machines)} machines"

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each kind of machine, size and configuration, and a row with CO's worst case against D.

        The figures of a row are medians over the machines.
        """
        rows: list[dict[str, Any]] = []
        for kind in MachineKind:
            machines = [machine for machine in self.machines if machine.kind is kind]
            for size in machines[0].served if machines else ():
                for configuration in Configuration:
                    served = [machine.served[size][configuration] for machine in machines]
                    rows.append(
                        {
                            "what": SIMULATED,
                            "kind": kind.value,
                            "bytes": size,
                            "configuration": configuration.value,
                            **measured(
                                memory_bytes=[each.memory_bytes for each in served],
                                total_ms=[each.total_ms for each in served],
                                response_ms=[each.response_ms for each in served],
                                utilisation=[each.utilisation for each in served],
                            ),
                            "with_pairs": float(np.mean([each.paired > 0 for each in served])),
                        }
                    )
        return [*rows, self._worst_case()]

    def _worst_case(self) -> dict[str, Any]:
        """Returns the most that CO takes of D's, over all machines and sizes. By construction it is at most 1."""
        return {
            "what": f"{SIMULATED}, CO over D at most",
            "memory": max(self._parts(lambda served: served[CO].memory_bytes / served[D].memory_bytes)),
            "total": max(self._parts(lambda served: served[CO].total_ms / served[D].total_ms)),
            "response": max(self._parts(lambda served: served[CO].response_ms / served[D].response_ms)),
        }

    def panels(self) -> list[Panel]:
        """Returns the panels of Fig. 9 and Table V.

        They show memory and response time divided by those of D, and GPU utilisation. A sample is the mean over the
        sizes on one machine.
        """
        return [
            self._panel(
                "memory, D = 1",
                "",
                lambda served, configuration: served[configuration].memory_bytes / served[D].memory_bytes,
            ),
            self._panel(
                "mean response time, D = 1",
                "",
                lambda served, configuration: served[configuration].response_ms / served[D].response_ms,
            ),
            self._panel("GPU utilisation", "%", lambda served, configuration: 100 * served[configuration].utilisation),
        ]

    def _panel(self, title: str, unit: str, part: Callable[[ByConfiguration, Configuration], float]) -> Panel:
        samples = {
            configuration.value: [
                float(np.mean([part(served, configuration) for served in machine.served.values()]))
                for machine in self.machines
            ]
            for configuration in Configuration
        }
        return Panel(f"{title} ({SIMULATED})", unit, samples)


def simulate(machines: int, applications: Sequence[Application], sizes: Sequence[int]) -> Simulation:
    """Simulates all configurations at all sizes on ``machines`` synthetic machines."""
    begin = time.perf_counter()
    results = [_simulate(draw_machine(seed), applications, sizes) for seed in range(machines)]
    return Simulation(results, time.perf_counter() - begin)


def _simulate(machine: SyntheticMachine, applications: Sequence[Application], sizes: Sequence[int]) -> MachineResults:
    gpu = SimulatedGpu(machine.constants)
    served = {}
    for size in sizes:
        tasks = [application.task(size, assumed_ms(application, size, machine)) for application in applications]
        served[size] = {
            configuration: serve(configuration, tasks, gpu, machine.constants, POLICIES)
            for configuration in Configuration
        }
    kind = MachineKind.BOARD if math.isfinite(machine.constants.gpu_flush_ms) else MachineKind.BUS
    return MachineResults(kind, served)


def assumed_ms(application: Application, size: int, machine: SyntheticMachine) -> float:
    """Returns the ms of an application's kernels on a synthetic machine, if all data are in GPU memory already."""
    task = application.task(size)
    cached_bytes = sum(kernel.launches * kernel.cached_bytes for kernel in task.kernels)
    passed_bytes = sum(kernel.launches * kernel.accessed_bytes for kernel in task.kernels)
    kernels_ms = passed_bytes * machine.kernel_ms_per_byte + cached_bytes * machine.constants.cache_ms_per_byte
    return application.kernels * machine.call_ms + kernels_ms


def times_managed_memory(machines: Sequence[MachineResults]) -> Estimate:
    """Returns CO's memory divided by MO's: the median over machines and sizes. The machines are the samples."""
    by_size: dict[int, list[float]] = {}
    for machine in machines:
        for size, served in machine.served.items():
            by_size.setdefault(size, []).append(served[CO].memory_bytes / served[MO].memory_bytes)

    def middle(*parts: Samples) -> Samples:
        return np.median(np.concatenate(parts, axis=-1), axis=-1)

    return estimate(middle, *(by_size or {0: []}).values())


def times_the_better(served: ByConfiguration) -> float:
    """Returns CO's time for all applications divided by that of D or MO, whichever is shorter."""
    return served[CO].total_ms / min(served[D].total_ms, served[MO].total_ms)
