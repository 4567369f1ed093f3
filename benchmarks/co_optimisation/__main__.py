"""Several tasks on one GPU under three configurations of memory (paper 003, section V, Fig. 9 and Table V).

There are seven applications, like in the paper, at eight input sizes. The configurations are:

- D: all applications have device memory.
- MO: all have managed memory, for the least footprint.
- CO (co-optimised): the scheduler chooses the policy at each dispatch. It may run one application's kernels while the
  GPU waits for another one's pages.

The figures are memory, response time, and the part of the time in which kernels run. The gauge of a simulated board
also counts copies, as the paper's does.

On a GPU, the machine is calibrated, and the configurations then take turns. Without a GPU, the dispatches run on
simulated boards. Each board is fitted to Tables I and II of the paper, and knows nothing of the overhead model by which
the scheduler decides. Table V and MO's time over D's judge the boards. Every claim and every row of a simulation says
that it is simulated.

Needs torch only: from the source tree, `PYTHONPATH=. python benchmarks co_optimisation`.
"""

from __future__ import annotations

import argparse
import sys

import torch

from benchmarks.co_optimisation.board.fit import fit
from benchmarks.co_optimisation.judge import Judgement
from benchmarks.co_optimisation.measurement import SizeContest, conclude, panels
from benchmarks.co_optimisation.real_gpu import RealGpu
from benchmarks.co_optimisation.runs import Application
from benchmarks.co_optimisation.simulation import simulate
from benchmarks.common.report import Report, arguments, deliver, seconds_for_turns, show
from benchmarks.common.turns import take_turns
from split_infer_ros.buffers.cuda import device_attributes
from split_infer_ros.buffers.policy import legal_policies
from split_infer_ros.memory_cost.machine import calibrate_machine

MIB = 2**20
SIZES = tuple(MIB * size for size in (1, 2, 4, 8, 12, 16, 24, 32))
# The workloads of Table IV with their counts of kernels. A step of a search goes over a frontier, one of a path over a
# row, and one of an alignment over a diagonal, so these kernels share the data. A step of an elimination goes over what
# is left of the matrix, which is a third of it in the mean.
APPLICATIONS = (
    Application("search", 1, 24, share=1 / 24),  # BFS
    Application("path", 1, 512, share=1 / 512),  # Pathfinder
    Application("align", 0.5, 320, share=1 / 320),  # NW
    Application("neighbours", 0.25, 1),  # NN
    Application("add", 1, 1),  # vect-add
    Application("solve", 0.05, 1024, share=1 / 3, rereads=1),  # Gaussian
    Application("heat", 0.5, 1, rereads=8),  # Hotspot
)
QUICK_BOARDS, BOARDS = 12, 144
FULL_S = 600.0


def simulation(boards: int) -> Report:
    """Simulates all configurations on ``boards`` fitted boards; returns the report."""
    print("There is no GPU: dispatches run on simulated boards, nothing is measured.", flush=True)
    fitted = [fit(seed) for seed in range(boards)]
    simulated = simulate([each.board for each in fitted], APPLICATIONS, SIZES)
    judged = Judgement.of(fitted, simulated, APPLICATIONS, SIZES)
    claims, rows = [*judged.claims(), *simulated.claims()], [*judged.rows(), *simulated.rows()]
    return Report("co_optimisation", claims, rows, simulated.panels())


def measurement(device: torch.device, chosen: argparse.Namespace) -> Report:
    """Measures all configurations at all sizes on a GPU; returns the report."""
    allowed = legal_policies(device_attributes(device.index or 0))
    constants = calibrate_machine(device, say=lambda line: print(line, flush=True)).constants
    by_name = {application.name: application for application in APPLICATIONS}
    contests = [SizeContest(size, APPLICATIONS, RealGpu(device, by_name, size), constants, allowed) for size in SIZES]
    take_turns([each.contest for each in contests], seconds_for_turns(chosen, FULL_S))
    rows = [row for each in contests for row in each.rows()]
    for row in rows:
        show(row)
    return Report("co_optimisation", conclude(contests), rows, panels(contests))


def main() -> int:
    """Runs the benchmark, on the GPU if there is one."""
    chosen = arguments(__doc__).parse_args()
    if torch.cuda.is_available():
        report = measurement(torch.device("cuda", 0), chosen)
    else:
        report = simulation(QUICK_BOARDS if chosen.quick else BOARDS)
    deliver(report, chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
