"""Applications that share a simulated GPU: what the scheduler decides, and what that is worth if the model is right."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from _co_runs import CO, CONFIGURATIONS, MO, Application, D, Served, SimulatedGpu, serve
from _rows import measured
from _synthetic_machine import SyntheticMachine, draw_machine

from split_infer_ros.buffers.policy import POLICIES
from split_infer_ros.telemetry.claim import Claim, Direction
from split_infer_ros.telemetry.estimate import Estimate, Samples, estimate, exact
from split_infer_ros.telemetry.report import Panel

SIMULATED = "simulated"
BOARDS, BUS = KINDS = ("boards with one memory", "GPUs on a bus")

Part = Callable[[Mapping[str, Served]], float]


@dataclass(frozen=True)
class Machine:
    """A synthetic machine, and what became of all applications on it.

    Attributes:
        kind: BOARDS or BUS.
        served: by size of the input and by configuration.
    """

    kind: str
    served: Mapping[int, Mapping[str, Served]]


@dataclass(frozen=True)
class Simulation:
    """What was simulated.

    Attributes:
        machines: each with the same sizes.
        seconds: that it took.
    """

    machines: Sequence[Machine]
    seconds: float

    def claims(self) -> list[Claim]:
        """CO against MO's memory, of all machines and sizes the one in the middle, and against D, the worst of them.

        A median has an interval over machines: each is a sample of what machines there may be. The worst case is that
        of these machines, which are the same in every run: it is counted.
        """
        return [
            *(self._memory(kind) for kind in KINDS),
            self._worst("memory, times D's, at most", lambda it: it[CO].memory_bytes / it[D].memory_bytes),
            self._worst("time for all, times D's, at most", lambda it: it[CO].total_ms / it[D].total_ms),
            self._worst(
                "mean response, times D's, at most", lambda it: it[CO].response_ms / it[D].response_ms, "0.79 x"
            ),
            self._worst("time, times the better one's, at most", times_the_better),
            self._worst(
                "GPU utilisation, times MO's, at least",
                lambda it: it[CO].utilisation / it[MO].utilisation,
                "1.10 and 1.33 x",
                Direction.AT_LEAST,
            ),
        ]

    def _memory(self, kind: str) -> Claim:
        machines = [machine for machine in self.machines if machine.kind == kind]
        name = f"{self._name}, {kind}: CO's memory, times MO's, median"
        turn_s = self.seconds / len(machines) if machines else math.nan
        return Claim(name, times_managed_memory(machines), "x", 1.15, Direction.AT_MOST, turn_s=turn_s)

    def _worst(self, what: str, part: Part, paper: str = "", direction: Direction = Direction.AT_MOST) -> Claim:
        parts = [part(served) for machine in self.machines for served in machine.served.values()]
        value = max(parts) if direction == Direction.AT_MOST else min(parts)
        return Claim(f"{self._name}: CO's {what}", exact(value), "x", 1.0, direction, paper=paper)

    @property
    def _name(self) -> str:
        return f"{SIMULATED}, {len(self.machines)} machines"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each kind of machine, size and configuration: medians over the machines."""
        rows = []
        for kind in KINDS:
            machines = [machine for machine in self.machines if machine.kind == kind]
            for size in machines[0].served if machines else ():
                for name in CONFIGURATIONS:
                    found = [machine.served[size][name] for machine in machines]
                    rows.append(
                        {
                            "what": SIMULATED,
                            "kind": kind,
                            "bytes": size,
                            "configuration": name,
                            **measured(
                                memory_bytes=[each.memory_bytes for each in found],
                                total_ms=[each.total_ms for each in found],
                                response_ms=[each.response_ms for each in found],
                                utilisation=[each.utilisation for each in found],
                            ),
                            "with_pairs": float(np.mean([each.paired > 0 for each in found])),
                        }
                    )
        return rows

    def panels(self) -> list[Panel]:
        """Fig. 9 and Table V in form: memory and response in parts of D's, and utilisation, a machine's mean each."""
        return [
            self._panel("memory, D = 1", "", lambda of, name: of[name].memory_bytes / of[D].memory_bytes),
            self._panel("mean response time, D = 1", "", lambda of, name: of[name].response_ms / of[D].response_ms),
            self._panel("GPU utilisation", "%", lambda of, name: 100 * of[name].utilisation),
        ]

    def _panel(self, title: str, unit: str, part: Callable[[Mapping[str, Served], str], float]) -> Panel:
        samples = {
            name: [float(np.mean([part(of, name) for of in machine.served.values()])) for machine in self.machines]
            for name in CONFIGURATIONS
        }
        return Panel(f"{title} ({SIMULATED})", unit, samples)


def simulate(machines: int, applications: Sequence[Application], sizes: Sequence[int]) -> Simulation:
    """All configurations at all sizes on so many synthetic machines."""
    begin = time.perf_counter()
    found = [_simulate(draw_machine(seed), applications, sizes) for seed in range(machines)]
    return Simulation(found, time.perf_counter() - begin)


def _simulate(machine: SyntheticMachine, applications: Sequence[Application], sizes: Sequence[int]) -> Machine:
    gpu = SimulatedGpu(machine.constants)
    served = {}
    for size in sizes:
        tasks = [application.task(size, assumed_ms(application, size, machine)) for application in applications]
        served[size] = {name: serve(name, tasks, gpu, machine.constants, POLICIES) for name in CONFIGURATIONS}
    return Machine(BOARDS if math.isfinite(machine.constants.gpu_flush_ms) else BUS, served)


def assumed_ms(application: Application, size: int, machine: SyntheticMachine) -> float:
    """What the kernels of an application take on a synthetic machine whose memory is all in place."""
    task = application.task(size)
    again = sum(kernel.cached_bytes for kernel in task.kernels) * machine.constants.cache_ms_per_byte
    passes = application.kernels * application.nbytes(size) * machine.kernel_ms_per_byte
    return application.kernels * machine.call_ms + passes + again


def times_managed_memory(machines: Sequence[Machine]) -> Estimate:
    """CO's memory in parts of MO's: the median over machines and sizes. The machines are the samples."""
    by_size: dict[int, list[float]] = {}
    for machine in machines:
        for size, served in machine.served.items():
            by_size.setdefault(size, []).append(served[CO].memory_bytes / served[MO].memory_bytes)

    def middle(*parts: Samples) -> Samples:
        return np.median(np.concatenate(parts, axis=-1), axis=-1)

    return estimate(middle, *(by_size or {0: []}).values())


def times_the_better(served: Mapping[str, Served]) -> float:
    """CO's time in parts of the shorter one of D's and MO's."""
    return served[CO].total_ms / min(served[D].total_ms, served[MO].total_ms)
