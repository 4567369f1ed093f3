"""Memory policies: what each costs, whether the overhead model predicts that, and what the slot pool (the ring) costs.

- Simulated machines have timings with 5 % noise, and a tenth of them are far off. Does calibration find their
  constants?
- This machine is calibrated: how long does that take? A quick run calibrates once, and makes no claim about it.
- CPU and GPU use a buffer by turns. It is small or large, and accesses are streaming or cache-friendly. Its footprint
  and response time are measured under each policy, and under the policy that the model chooses. Predicted times are
  compared with measured ones, at eight sizes for each case (Fig. 8 of paper 003). This needs a GPU.
- Features are handed over without a model: the ring against queues that carry buffers, in a process and across two.
  queue.Queue takes part twice. Its buffers come new from the system, or from torch.empty, which in a loop returns the
  buffer that was freed last.

Needs torch only: from the source tree, `PYTHONPATH=. python benchmarks memory_policies`.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import exact, mean, median
from benchmarks.common.report import Report, run_command, seconds_for_turns
from benchmarks.common.rows import finite, measured
from benchmarks.common.synthetic_machine import draw_machine
from benchmarks.common.turns import Contest, take_turns
from benchmarks.common.usage import Usage
from benchmarks.memory_policies.claims import PolicyContest
from benchmarks.memory_policies.ring_contests import across_processes, in_process, ring_claims
from benchmarks.memory_policies.ring_cost import SIZES
from benchmarks.memory_policies.runs import CASES, PolicyRuns
from split_infer_ros.buffers.cuda import device_attributes
from split_infer_ros.buffers.policy import legal_policies
from split_infer_ros.measurements.database import Database
from split_infer_ros.memory_cost.calibration import Calibration, calibrate
from split_infer_ros.memory_cost.constants import ALL_CONSTANTS
from split_infer_ros.memory_cost.machine import calibrate_machine
from split_infer_ros.memory_cost.samples import Probe

Rows = list[Mapping[str, Any]]
SIMULATED_MACHINES = 60
QUICK_CALIBRATION_S, CALIBRATION_S = 12.0, 25.0  # after so many seconds, nothing is timed again
FULL_S = 900.0


class CalibrationContest:
    """Calibrates this machine, without keeping the results. The rest of the benchmark uses the first calibration.

    Args:
        device: the device to calibrate.
        max_seconds: after so many seconds, nothing is timed again.
        again: whether turns calibrate anew, to time it. If not, there is only the first calibration, and no claim.

    Attributes:
        found: the result of the first calibration.
        contests: the contest that times calibrations if ``again``; otherwise empty.
    """

    def __init__(self, device: torch.device, max_seconds: float, again: bool) -> None:
        self._device = device
        self._max_seconds = max_seconds
        self._usage = Usage()
        self._first_s, self.found = self._calibrate()
        self.contests = [Contest("calibration", self._turn, self._conclude)] if again else []

    def _turn(self, number: int) -> dict[str, float]:
        return {"s": self._calibrate()[0]}

    def _calibrate(self) -> tuple[float, Calibration]:
        with tempfile.TemporaryDirectory() as folder, self._usage.of("calibration"):
            database = Database(Path(folder, "tuning.jsonl"))
            begin = time.monotonic()
            found = calibrate_machine(self._device, database, say=say, max_seconds=self._max_seconds)
            return time.monotonic() - begin, found

    def _conclude(self, contest: Contest) -> list[Claim]:
        taken = median(contest.figures["s"])
        return [Claim("calibration of this machine takes", taken, "s", 30.0, Direction.AT_MOST, turn_s=contest.turn_s)]

    def claims(self) -> list[Claim]:
        """Returns the claim about how long a calibration takes; no claim unless turns calibrate anew."""
        return [claim for contest in self.contests for claim in self._conclude(contest)]

    def rows(self) -> Rows:
        """Returns a row about how long a calibration takes, and rows of the constants that the first one found."""
        samples = [value for contest in self.contests for value in contest.figures["s"]] or [self._first_s]
        taken = measured(s=samples)
        return [{"what": "calibration", **taken, **self._usage.row("calibration")}, *constants(self.found)]


def run(chosen: argparse.Namespace) -> Report:
    """Measures all parts of the benchmark that this machine can measure; returns the report."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    rows, claims = recover(SIMULATED_MACHINES)
    max_seconds = QUICK_CALIBRATION_S if chosen.quick else CALIBRATION_S
    calibration = CalibrationContest(device, max_seconds, again=not chosen.quick)
    policies = []
    if device.type == "cuda":
        allowed = legal_policies(device_attributes(device.index or 0))
        policies = [PolicyContest(PolicyRuns(device, CASES, calibration.found.constants, allowed))]
    else:
        say("skipped: footprint, time, prediction and choice of device, managed, pinned memory: they need a CUDA GPU")
    with across_processes(SIZES) as across:
        inside = in_process(SIZES)
        others = [each.contest for each in (*policies, *inside, *across)]
        take_turns([*calibration.contests, *others], seconds_for_turns(chosen, FULL_S))
        rows += calibration.rows()
        rows += [row for each in (*policies, *inside, *across) for row in each.rows()]
    claims += calibration.claims()
    claims += [claim for each in policies for claim in each.claims()]
    claims += ring_claims(inside) + ring_claims(across)
    panels = [panel for each in policies for panel in each.panels()]
    panels += [each.panel() for each in (*inside, *across)]
    return Report("memory_policies", claims, rows, panels)


def recover(machines: int) -> tuple[Rows, list[Claim]]:
    """Calibrates ``machines`` simulated machines.

    Returns rows and claims about how far the found constants are from those of the machines.
    """
    rows: Rows = []
    for seed in range(machines):
        machine = draw_machine(seed)
        found = calibrate(machine, tuple(Probe))
        for row in ALL_CONSTANTS:
            real, found_again = getattr(machine.constants, row.name), found.measured[row.name]
            error = 0.0 if real == found_again else abs(found_again / real - 1)  # equal if both are infinite
            certain = row.name not in found.uncertain
            values = {"real": finite(real), "measured": finite(found_again), "error": finite(error), "certain": certain}
            rows.append({"what": "simulated", "machine": seed, "constant": row.name, **values})
    worst = max(math.inf if row["error"] is None else row["error"] for row in rows)
    certain = np.reshape([row["certain"] for row in rows], (machines, -1)).mean(axis=1)
    name = f"{machines} simulated machines: constants"
    return rows, [
        Claim(f"{name} off by at most, of the real ones", exact(100 * worst), "%", 5.0, Direction.AT_MOST),
        Claim(f"{name} found certain, part of all", mean(certain), "", 0.99),
    ]


def constants(found: Calibration) -> Rows:
    """Returns a row for each constant that the calibration ``found`` on this machine."""
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


def say(line: str) -> None:
    """Prints a line of progress."""
    print(line, flush=True)


def main() -> int:
    """Runs the benchmark."""
    return run_command(__doc__, run)


if __name__ == "__main__":
    sys.exit(main())
