"""Several tasks on one GPU under device memory, under managed memory, and co-optimised (§V, Fig. 9 and Table V).

Seven applications, as many as in the paper, at eight input sizes. D: all have device memory. MO: all have managed
memory, for the least footprint. CO: at each dispatch the scheduler chooses the policy, and may let the kernels of one
run while the GPU waits for the pages of another. Memory, response time and the part of the time in which kernels run.

On a GPU the applications run, after the machine was calibrated. Without one the same dispatches are played: each takes
what the overhead model says, under the constants of synthetic machines, of which every third is a GPU on a bus. What is
played shows what the scheduler decides and what that is worth if the model is right; it is not a measurement, and the
report says so.

Needs torch only: from the source tree, `PYTHONPATH=. python benchmarks/co_optimisation.py`.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `python -m benchmarks.co_optimisation`
from _co_runs import CO, CONFIGURATIONS, MO, Application, D, PlayedGpu, RealGpu, serve
from _synthetic_machine import SyntheticMachine, draw_machine

from split_infer_ros.buffers.cuda import device_attributes
from split_infer_ros.buffers.policy import POLICIES, legal
from split_infer_ros.memory_model.machine import calibrate_machine
from split_infer_ros.telemetry.report import AT_MOST, Claim, Panel, Report, arguments, deliver, show

Rows = list[Mapping[str, Any]]

MIB = 2**20
SIZES = tuple(MIB * size for size in (1, 2, 4, 8, 12, 16, 24, 32))
APPLICATIONS = (
    Application("search", 1, 24),
    Application("path", 1, 4),
    Application("align", 0.5, 20, rereads=4),
    Application("neighbours", 0.25, 1),
    Application("add", 1, 1),
    Application("solve", 0.05, 64, rereads=16),
    Application("heat", 0.5, 1, rereads=8),
)
MEASURED, PLAYED = "measured", "played"
BOARDS, BUS = "boards with one memory", "GPUs on a bus"


def run(machines: int, rounds: int) -> Report:
    """On the GPU if there is one, else played.

    Args:
        machines: synthetic ones.
        rounds: of all applications at each size, on a GPU; what is played is always the same.
    """
    rows: Rows = measure(torch.device("cuda", 0), rounds) if torch.cuda.is_available() else play(machines)
    return Report("co_optimisation", conclude(rows), rows, panels(rows))


def measure(device: torch.device, rounds: int) -> Rows:
    """All configurations at all sizes on a GPU; the configurations take turns at each size."""
    allowed = legal(device_attributes(device.index or 0))
    constants = calibrate_machine(device, say=lambda line: print(line, flush=True)).constants
    rows: Rows = []
    named = {application.name: application for application in APPLICATIONS}
    for size in SIZES:
        gpu = RealGpu(device, named, size)
        tasks = [application.task(size, gpu.execution_ms(application, rounds)) for application in APPLICATIONS]
        for configuration in CONFIGURATIONS:
            found = serve(configuration, tasks, gpu, constants, allowed, rounds)
            rows.append({"what": MEASURED, "machine": "this", "kind": "this GPU", "bytes": size} | found)
            show(rows[-1])
    return rows


def play(machines: int) -> Rows:
    """All configurations at all sizes on synthetic machines."""
    print("There is no GPU: dispatches are played on synthetic machines, nothing is measured.", flush=True)
    rows: Rows = []
    for seed in range(machines):
        machine = draw_machine(seed)
        gpu = PlayedGpu(machine.constants)
        for size in SIZES:
            tasks = [application.task(size, assumed_ms(application, size, machine)) for application in APPLICATIONS]
            for configuration in CONFIGURATIONS:
                found = serve(configuration, tasks, gpu, machine.constants, POLICIES, 1)
                kind = BOARDS if math.isfinite(machine.constants.gpu_flush_ms) else BUS
                rows.append({"what": PLAYED, "machine": seed, "kind": kind, "bytes": size} | found)
    return rows


def assumed_ms(application: Application, size: int, machine: SyntheticMachine) -> float:
    """What the kernels of an application take on a synthetic machine whose memory is all in place."""
    task = application.task(size)
    again = sum(kernel.cached_bytes for kernel in task.kernels) * machine.constants.cache_ms_per_byte
    passes = application.kernels * application.nbytes(size) * machine.kernel_ms_per_byte
    return application.kernels * machine.call_ms + passes + again


def conclude(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """CO against MO's memory, of many machines and sizes the one in the middle, and against D's time, the worst."""
    (what,) = {row["what"] for row in rows}
    runs = in_parts(rows)
    memory: dict[str, list[float]] = {}
    for run in runs:
        memory.setdefault(run[CO]["kind"], []).append(run[CO]["memory_bytes"] / run[MO]["memory_bytes"])
    saved = [run[CO]["memory_bytes"] / run[D]["memory_bytes"] for run in runs]
    total = [run[CO]["total_ms"] / run[D]["total_ms"] for run in runs]
    response = [run[CO]["response_ms"] / run[D]["response_ms"] for run in runs]
    least = [run[CO]["total_ms"] / min(run[D]["total_ms"], run[MO]["total_ms"]) for run in runs]
    busy = [run[CO]["utilisation"] / run[MO]["utilisation"] for run in runs]
    return [
        *(
            Claim(f"{what}, {kind}: CO's memory, times MO's, median", statistics.median(parts), "x", 1.15, AT_MOST)
            for kind, parts in memory.items()
        ),
        Claim(f"{what}: CO's memory, times D's, at most", max(saved), "x", 1.0, AT_MOST),
        Claim(f"{what}: CO's time for all, times D's, at most", max(total), "x", 1.0, AT_MOST),
        Claim(f"{what}: CO's mean response, times D's, at most", max(response), "x", 1.0, AT_MOST),
        Claim(f"{what}: CO's time, times the better one's, at most", max(least), "x", 1.0, AT_MOST),
        Claim(f"{what}: CO's GPU utilisation, times MO's, at least", min(busy), "x", 1.0),
    ]


def in_parts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Mapping[str, Any]]]:
    """The configurations of each machine and size."""
    found: dict[tuple[Any, int], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["machine"], row["bytes"]), {})[row["configuration"]] = row
    return list(found.values())


def panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Fig. 9 and Table V: memory and response time in parts of D's, and utilisation, of each machine and size."""
    (what,) = {row["what"] for row in rows}
    runs = in_parts(rows)

    def parts(key: str) -> dict[str, list[float]]:
        return {name: [run[name][key] / run[D][key] for run in runs] for name in CONFIGURATIONS}

    busy = {name: [100 * run[name]["utilisation"] for run in runs] for name in CONFIGURATIONS}
    return [
        Panel(f"memory, D = 1 ({what})", "", parts("memory_bytes")),
        Panel(f"mean response time, D = 1 ({what})", "", parts("response_ms")),
        Panel(f"GPU utilisation ({what})", "%", busy),
    ]


def main() -> int:
    """Run the benchmark."""
    chosen = arguments(__doc__).parse_args()
    deliver(run(6, 5) if chosen.quick else run(12, 25), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
