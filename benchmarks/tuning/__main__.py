"""Tuning: what it gains on this machine, how it compares with vendors' libraries, and how soon it finds the best.

- A model takes turns with itself: as built, untuned, tuned, and run by the vendors' libraries. A turn is a short group
  of calls of each; all ratios are of the same turns. Table 5 of paper 004 compares with its own untuned templates, and
  its Tables 1 to 3 with vendors. Vendors are ONNX Runtime and OpenVINO on a CPU, and cuDNN on a
  GPU. Batch 1, fp32, all cores, the network alone. OpenVINO takes part once more as it compiles if no precision is
  named, unless that is fp32 too; the row says which. docs/paper_models.md says which models stand for the paper's.
- A small space of one model (execution configs and batch sizes) is measured exhaustively. Then guided and random search
  are replayed on the recorded times, in each turn with another seed. Counted are the trials and seconds until a
  configuration is within 5 % of the best one of the space. The seconds are those of the recorded trials, and those that
  the search itself needs now.
- How long the next start needs to read the record of the tuned network, once in each turn.

A row's `usage` is that of this process while a network has its turns; its memory holds all networks of the model.
A full run takes most of an hour. `--models A B` tunes only these models; `--models` without names only compares
searches. `--add-to FILE` adds the rows of an earlier run on this machine, so that parts can be measured one by one.
Rows keep the samples of each turn, and all claims are made again from them. `--seconds` is the time of each model's
turns.

Needs torch, torchvision and scikit-learn: from the source tree, `PYTHONPATH=. python benchmarks tuning`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import NOTHING, exact, maximum, median
from benchmarks.common.report import Curve, Panel, Report, arguments, deliver, seconds_for_turns, show
from benchmarks.common.turns import take_turns
from benchmarks.tuning.contest import GOALS, Rivals, claims_of_model, times_vendors
from benchmarks.tuning.search_replays import Replays, claims_of_searches, record_costs
from split_infer_ros.measurements.database import Database
from split_infer_ros.runtime.process import prepare_process
from split_infer_ros.split.load import choose_device
from split_infer_ros.telemetry.machine import describe_machine

PAPER = ("ssd_resnet50", "yolov3")  # further models of the paper, besides those with goals
OTHERS = ("resnet18", "efficientnet_b2", "vit_tiny", "shapes", "alexnet", "vgg16", "ssd300")
SAME_MACHINE = ("cpu", "instruction_set", "cores", "gpu")
FULL_S = 90.0  # for each model's turns, and for the replays

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Extent:
    """Says how much is measured.

    Attributes:
        models: the names of the models that are tuned.
        seconds: how long each model is tuned.
        group_s: how many seconds a network is called in a turn.
        batch_sizes: the batch sizes of the space on which searches are compared.
        searched: the name of the model of this space.
        trial_s: an uncertain measurement in this space is not repeated after this many seconds.
        is_quick: whether vendors' networks are exported in the quick way, and all contests share the time.
    """

    models: Sequence[str]
    seconds: float
    group_s: float
    batch_sizes: Sequence[int]
    searched: str = "mobilenet_v2"
    trial_s: float = 2.0
    is_quick: bool = False


QUICK = Extent(("mobilenet_v2",), 18.0, 0.1, (1,), trial_s=0.5, is_quick=True)
FULL = Extent((*GOALS, *PAPER, *OTHERS), 40.0, 0.3, (1, 2, 4, 8))


def run(
    extent: Extent,
    device: torch.device,
    seconds: Callable[[], float],
    searches: bool = True,
    before: Sequence[Row] = (),
) -> Report:
    """Tunes and measures the models, compares searches, and returns the report.

    Args:
        extent: how much is measured.
        device: the device that runs the networks.
        seconds: returns how long contests may take turns from now on.
        searches: whether searches are compared.
        before: rows of an earlier run. The report repeats them, except those about models and searches of this run.
    """
    rows: list[Row] = []
    replays = Replays(record_costs(extent.searched, extent.batch_sizes, extent.trial_s, device)) if searches else None
    # One model after another, so that not all are in memory. A quick run shares its time among all contests.
    groups = [extent.models] if extent.is_quick else [(name,) for name in extent.models]
    with tempfile.TemporaryDirectory() as folder:
        database = Database(Path(folder, "tuning.jsonl"))
        for names in groups:
            rivals = [
                Rivals(name, device, database, extent.seconds / len(names), extent.group_s, extent.is_quick)
                for name in names
            ]
            contests = [each.contest for each in rivals]
            if replays is not None and extent.is_quick:
                contests.append(replays.contest)
            if contests:
                take_turns(contests, seconds())
            rows += [each.row() for each in rivals]
    if replays is not None:
        if not extent.is_quick:
            take_turns([replays.contest], seconds())
        rows += replays.rows()
    for row in rows:
        show({name: value for name, value in row.items() if not isinstance(value, list) and name != "samples"})
    now = {subject_of(row) for row in rows}
    rows = [row for row in before if subject_of(row) not in now] + rows
    return Report("tuning", conclude(rows), rows, panels_of(rows))


def subject_of(row: Row) -> str:
    """Returns the model or the search that a row is about."""
    return str(row["model" if row["what"] == "model" else "search"])


def rows_of(path: Path) -> list[Row]:
    """Returns the rows of an earlier run on this machine.

    Raises:
        SystemExit: the run was on another machine.
    """
    earlier, here = json.loads(path.read_text()), describe_machine()
    for fact in SAME_MACHINE:
        if earlier["machine"].get(fact) != here[fact]:
            there = earlier["machine"].get(fact)
            raise SystemExit(f"{path} has rows of another machine: its {fact} is {there}, and here it is {here[fact]}.")
    return list(earlier["rows"])


def panels_of(rows: Sequence[Row]) -> list[Panel | Curve]:
    """Returns the panels of the picture: one for each model, and two about searches if there are rows of them."""
    panels: list[Panel | Curve] = [Panel(row["model"], "ms", row["samples"]) for row in rows if row["what"] == "model"]
    searches = {row["search"]: row for row in rows if row["what"] == "search"}
    if searches:
        panels.append(Panel("trials until within 5 %", "", {name: row["trials"] for name, row in searches.items()}))
        points = {
            name: list(zip(row["seconds_so_far"], row["best_so_far_ms"], strict=True)) for name, row in searches.items()
        }
        panels.append(Curve("best so far, until within 5 %", "seconds of search", "ms an image", points))
    return panels


def conclude(rows: Sequence[Row]) -> list[Claim]:
    """Returns the claims: about each model, then about all models and about searches."""
    models = [row for row in rows if row["what"] == "model"]
    claims = [claim for row in models for claim in claims_of_model(row)]
    if models:
        turn_s = sum(row["turn_s"] for row in models)
        reads = maximum([median(row["read_ms"]) for row in models])
        known = None not in (differences := [row["difference"] for row in models])
        against = [times_vendors(row) for row in models if row["model"] in GOALS]
        if against:
            claim = "the best of these models, tuned, times the best vendor's library in fp32"
            claims.append(Claim(claim, maximum(against), "x", 1.0, turn_s=turn_s))
        claims += [
            Claim(
                "results differ by, most", exact(max(differences)) if known else NOTHING, "", 1e-4, Direction.AT_MOST
            ),
            Claim("the next start reads its record in, most", reads, "ms", 100.0, Direction.AT_MOST, turn_s=turn_s),
        ]
    return claims + claims_of_searches([row for row in rows if row["what"] == "search"])


def main() -> int:
    """Runs the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="*", metavar="NAME", help="tune these alone")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    parser.add_argument("--add-to", type=Path, metavar="FILE", help="an earlier run's JSON, of which the rest is kept")
    chosen = parser.parse_args()
    before = rows_of(chosen.add_to) if chosen.add_to else []
    prepare_process()
    extent = QUICK if chosen.quick else FULL
    if chosen.models is not None:
        extent = replace(extent, models=tuple(chosen.models))

    def seconds() -> float:
        return seconds_for_turns(chosen, FULL_S)

    deliver(run(extent, choose_device(chosen.device), seconds, not chosen.models, before), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
