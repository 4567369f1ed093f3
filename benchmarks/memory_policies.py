"""Memory policies: what each costs, whether the model knows, and what the ring itself costs.

- Synthetic machines, timings with 5 % noise of which a tenth are far off: are their constants found again?
- This machine is calibrated: how long does that take?
- A buffer at which CPU and GPU take turns, small and large, streamed and friendly to caches: footprint and response
  time under each policy and under the one that the model chooses; what was predicted against what was measured at
  eight sizes a case (the paper's Fig. 8). This needs a GPU.
- Features handed over without a model: the ring against queues that carry buffers, in a process and across two. Of
  queue.Queue there are two: its buffers are memory that the system has just given, or such as torch.empty gives, which
  in a loop is the one that was freed before.

Needs torch only: from the source tree, `PYTHONPATH=. python benchmarks/memory_policies.py`.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `python -m benchmarks.memory_policies`
from _policy_runs import CASES, PolicyRuns
from _ring_cost import FRESH, PROCESS_QUEUE, REUSED, RING, SIZES, across_processes, in_process
from _synthetic_machine import draw_machine

from split_infer_ros.buffers.cuda import device_attributes
from split_infer_ros.buffers.policy import Policy, legal
from split_infer_ros.memory_model.calibration import Calibration, calibrate
from split_infer_ros.memory_model.constants import ROWS
from split_infer_ros.memory_model.machine import calibrate_machine
from split_infer_ros.memory_model.samples import Probe
from split_infer_ros.telemetry.report import AT_MOST, Claim, Panel, Report, arguments, deliver
from split_infer_ros.tuning.database import Database

Rows = list[Mapping[str, Any]]
Times = Mapping[tuple[str, int], Sequence[float]]  # by rival and bytes
PAPERS_MEAN, PAPERS_WORST = 9.3, 24.3  # % (§V-B)
LEAST_ERROR = 1e-4  # a geometric mean does not bear zeros


def run(machines: int, rounds: int, hand_overs: int, most_seconds: float) -> Report:
    """Measure everything that this machine can.

    Args:
        machines: synthetic ones.
        rounds: of each turn under each policy.
        hand_overs: of each rival at each size.
        most_seconds: of calibration.
    """
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    rows, claims = recover(machines)
    with tempfile.TemporaryDirectory() as folder:
        database = Database(Path(folder, "tuning.jsonl"))
        begin = time.monotonic()
        calibration = calibrate_machine(device, database, say=say, most_seconds=most_seconds)
    claims.append(Claim("calibration of this machine takes", time.monotonic() - begin, "s", 30.0, AT_MOST))
    rows += constants(calibration)
    panels = []
    if device.type == "cuda":
        found = compare_policies(device, calibration, rounds)
        rows += found
        claims += claims_of_policies(found)
        panels += panels_of_policies(found)
    else:
        say("skipped: footprint, time, prediction and choice of device, managed, pinned memory: they need a CUDA GPU")
    for place, times in (("in process", in_process(hand_overs)), ("across processes", across_processes(hand_overs))):
        rows += ring_rows(place, times)
        claims += ring_claims(place, times)
        panels.append(ring_panel(place, times))
    return Report("memory_policies", claims, rows, panels)


def recover(machines: int) -> tuple[Rows, list[Claim]]:
    """How far the constants of synthetic machines are off once calibrated."""
    rows: Rows = []
    for seed in range(machines):
        machine = draw_machine(seed)
        found = calibrate(machine, tuple(Probe))
        for row in ROWS:
            real, measured = getattr(machine.constants, row.name), found.measured[row.name]
            error = 0.0 if real == measured else abs(measured / real - 1)  # both may be infinite
            certain = row.name not in found.uncertain
            values = {"real": finite(real), "measured": finite(measured), "error": finite(error), "certain": certain}
            rows.append({"what": "synthetic", "machine": seed, "constant": row.name, **values})
    worst = max(math.inf if row["error"] is None else row["error"] for row in rows)
    return rows, [
        Claim("constants of synthetic machines, off by at most", 100 * worst, "%", 5.0, AT_MOST),
        Claim("of those, part that is found certain", statistics.mean(row["certain"] for row in rows), "", 0.99),
    ]


def constants(found: Calibration) -> Rows:
    """Those of this machine."""
    return [
        {
            "what": "constant",
            "constant": name,
            "value": finite(value),
            "spread": finite(found.spreads[name]),
            "certain": name not in found.uncertain,
        }
        for name, value in found.measured.items()
    ]


def compare_policies(device: torch.device, calibration: Calibration, rounds: int) -> Rows:
    """All cases under all policies that this GPU allows."""
    allowed = legal(device_attributes(device.index or 0))
    runs = PolicyRuns(device, rounds)
    rows: Rows = []
    for case in CASES:
        rows += runs.compare(case, calibration.constants, allowed)
        say(f"{case.name}: auto takes {', '.join(sorted({row['auto'] for row in rows if row['case'] == case.name}))}")
    return rows


def claims_of_policies(rows: Rows) -> list[Claim]:
    """Error of the prediction (geometric mean of each case and policy, as in Fig. 8), loss by the choice, footprint."""
    by_bar: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        by_bar.setdefault((row["case"], row["policy"]), []).append(row["error"])
    errors = [geometric_mean(found) for found in by_bar.values()]
    losses, parts = [], []
    for same in turns(rows):
        times = {row["policy"]: row["measured_ms"] for row in same}
        sizes = {row["policy"]: row["footprint_bytes"] for row in same}
        losses.append(times[same[0]["auto"]] / min(times.values()) - 1)
        if Policy.DEVICE.value in sizes:
            parts += [sizes[policy] / sizes[Policy.DEVICE.value] for policy in sizes if policy != Policy.DEVICE.value]
    return [
        Claim("predicted response time, off by, mean", 100 * geometric_mean(errors), "%", PAPERS_MEAN, AT_MOST),
        Claim("of one case and policy, at most", 100 * max(errors), "%", PAPERS_WORST, AT_MOST),
        Claim("auto, slower than the best policy, at most", 100 * max(losses), "%", 3.0, AT_MOST),
        Claim("managed and pinned, part of device's memory", max(parts, default=math.nan), "", 0.5, AT_MOST),
    ]


def turns(rows: Rows) -> Iterable[Rows]:
    """Rows of the same case and size."""
    places = {(row["case"], row["bytes"]): None for row in rows}
    return [[row for row in rows if (row["case"], row["bytes"]) == place] for place in places]


def panels_of_policies(rows: Rows) -> list[Panel]:
    """Response times in each case, its sizes as samples."""
    return [
        Panel(
            f"response time, {case.name}",
            "ms",
            {
                policy.value: times
                for policy in Policy
                if (times := [r["measured_ms"] for r in rows if (r["case"], r["policy"]) == (case.name, policy.value)])
            },
        )
        for case in CASES
    ]


def ring_rows(place: str, times: Times) -> Rows:
    """Medians in microseconds, and the fastest and the slowest tenth."""
    return [
        {
            "what": f"hand-over {place}",
            "rival": rival,
            "bytes": size,
            "p10_us": 1e6 * statistics.quantiles(found, n=10)[0],
            "p50_us": 1e6 * statistics.median(found),
            "p90_us": 1e6 * statistics.quantiles(found, n=10)[-1],
        }
        for (rival, size), found in times.items()
    ]


def ring_claims(place: str, times: Times) -> list[Claim]:
    """The least ratio over the sizes of each rival's median to the ring's."""
    median = {key: statistics.median(found) for key, found in times.items()}
    for (rival, size), found in median.items():
        say(f"hand-over {place}, {size:,} bytes, {rival}: {1e6 * found:.1f} us")

    def least(rival: str) -> float:
        return min(median[rival, size] / median[RING, size] for size in SIZES)

    if (PROCESS_QUEUE, SIZES[0]) in median:
        return [Claim(f"ring {place}, times cheaper than {PROCESS_QUEUE}, least", least(PROCESS_QUEUE), "x", 10.0)]
    return [
        Claim(f"ring {place}, times cheaper than {FRESH}, least", least(FRESH), "x", 2.0),
        Claim(f"ring {place}, times cheaper than {REUSED}, least", least(REUSED), "x", 2.0),
    ]


def ring_panel(place: str, times: Times) -> Panel:
    """The size in the middle."""
    size = SIZES[len(SIZES) // 2]
    samples = {
        rival.replace(", ", ",\n"): [1e6 * value for value in found]
        for (rival, of), found in times.items()
        if of == size
    }
    return Panel(f"hand-over {place}, {size / 1e6:.1f} MB", "us", samples)


def geometric_mean(errors: Sequence[float]) -> float:
    """Of errors, none below a hundredth of a percent."""
    return statistics.geometric_mean([max(error, LEAST_ERROR) for error in errors])


def finite(value: float) -> float | None:
    """For JSON, which has neither infinity nor NaN."""
    return value if math.isfinite(value) else None


def say(line: str) -> None:
    """Progress."""
    print(line, flush=True)


def main() -> int:
    """Run the benchmark."""
    chosen = arguments(__doc__).parse_args()
    deliver(run(12, 5, 60, 12.0) if chosen.quick else run(60, 25, 300, 25.0), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
