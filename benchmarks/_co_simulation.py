"""Applications that share a simulated GPU: what the scheduler decides, and what that is worth if the model is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from _co_runs import CO, CONFIGURATIONS, MO, Application, D, SimulatedGpu, serve
from _synthetic_machine import SyntheticMachine, draw_machine

from split_infer_ros.buffers.policy import POLICIES
from split_infer_ros.telemetry.claim import AT_LEAST, AT_MOST, Claim
from split_infer_ros.telemetry.estimate import Estimate, exact, median
from split_infer_ros.telemetry.report import Panel

Row = Mapping[str, Any]
Input = Mapping[str, Row]  # by configuration: one machine and one size
SIMULATED = "simulated"
BOARDS, BUS = "boards with one memory", "GPUs on a bus"


def simulate(machines: int, applications: Sequence[Application], sizes: Sequence[int]) -> list[Row]:
    """A row for each synthetic machine, size and configuration."""
    rows: list[Row] = []
    for seed in range(machines):
        machine = draw_machine(seed)
        gpu = SimulatedGpu(machine.constants)
        kind = BOARDS if math.isfinite(machine.constants.gpu_flush_ms) else BUS
        for size in sizes:
            tasks = [application.task(size, assumed_ms(application, size, machine)) for application in applications]
            where = {"what": SIMULATED, "machine": seed, "kind": kind, "bytes": size}
            for configuration in CONFIGURATIONS:
                found = serve(configuration, tasks, gpu, machine.constants, POLICIES)
                rows.append({**where, "configuration": configuration, **asdict(found)})
    return rows


def assumed_ms(application: Application, size: int, machine: SyntheticMachine) -> float:
    """What the kernels of an application take on a synthetic machine whose memory is all in place."""
    task = application.task(size)
    again = sum(kernel.cached_bytes for kernel in task.kernels) * machine.constants.cache_ms_per_byte
    passes = application.kernels * application.nbytes(size) * machine.kernel_ms_per_byte
    return application.kernels * machine.call_ms + passes + again


def inputs(rows: Sequence[Row]) -> list[Input]:
    """The configurations of each machine and size."""
    found: dict[tuple[int, int], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row["machine"], row["bytes"]), {})[row["configuration"]] = row
    return list(found.values())


def conclude(rows: Sequence[Row]) -> list[Claim]:
    """CO against MO's memory, of many machines the one in the middle, and against D's time, the worst of all inputs.

    A median has an interval over machines, each a sample of what machines there may be. A worst case is that of these
    inputs, which are the same in every run: it is counted.
    """
    found = inputs(rows)
    machines = len({row["machine"] for row in rows})
    name = f"{SIMULATED}, {machines} machines"

    def worst(what: str, goal: float, direction: str, paper: str, part: Callable[[Input], float]) -> Claim:
        parts = [part(each) for each in found]
        value = max(parts) if direction == AT_MOST else min(parts)
        return Claim(f"{name}: CO's {what}", exact(value), "x", goal, direction, paper=paper)

    return [
        *(
            Claim(f"{name}, {kind}: CO's memory, times MO's, median", memory(found, kind), "x", 1.15, AT_MOST)
            for kind in (BOARDS, BUS)
        ),
        worst("memory, times D's, at most", 1.0, AT_MOST, "", lambda it: _times(it, "memory_bytes", D)),
        worst("time for all, times D's, at most", 1.0, AT_MOST, "", lambda it: _times(it, "total_ms", D)),
        worst("mean response, times D's, at most", 1.0, AT_MOST, "0.79 x", lambda it: _times(it, "response_ms", D)),
        worst("time, times the better one's, at most", 1.0, AT_MOST, "", times_the_better),
        worst(
            "GPU utilisation, times MO's, at least",
            1.0,
            AT_LEAST,
            "1.10 and 1.33 x",
            lambda it: _times(it, "utilisation", MO),
        ),
    ]


def memory(found: Sequence[Input], kind: str) -> Estimate:
    """CO's memory in parts of MO's: of each machine of a kind the median over its sizes, and the median of those."""
    parts: dict[int, list[float]] = {}
    for each in found:
        if each[CO]["kind"] == kind:
            parts.setdefault(each[CO]["machine"], []).append(_times(each, "memory_bytes", MO))
    return median([float(np.median(of_machine)) for of_machine in parts.values()])


def _times(each: Input, what: str, than: str) -> float:
    return float(each[CO][what] / each[than][what])


def times_the_better(each: Input) -> float:
    """CO's time in parts of the shorter one of D's and MO's."""
    return float(each[CO]["total_ms"] / min(each[D]["total_ms"], each[MO]["total_ms"]))


def panels(rows: Sequence[Row]) -> list[Panel]:
    """Fig. 9 and Table V in form: memory and response in parts of D's, and utilisation, of each machine and size."""
    found = inputs(rows)

    def parts(what: str) -> dict[str, list[float]]:
        return {name: [each[name][what] / each[D][what] for each in found] for name in CONFIGURATIONS}

    busy = {name: [100 * each[name]["utilisation"] for each in found] for name in CONFIGURATIONS}
    return [
        Panel(f"memory, D = 1 ({SIMULATED})", "", parts("memory_bytes")),
        Panel(f"mean response time, D = 1 ({SIMULATED})", "", parts("response_ms")),
        Panel(f"GPU utilisation ({SIMULATED})", "%", busy),
    ]
