"""What ``split_point: auto`` chooses while frames flow, against the best fixed split point and batch size.

A pipeline starts with `split_point: auto` and batch size 0. Its engine is fixed. It gets frames at a constant rate:

- `latency`: objective `latency`, with half of the frames that it can serve. The age of the results decides.
- `throughput`: objective `throughput`, with 1.5 times as many as it can serve. The frames a second decide.

Once it has chosen, the same pipeline runs with fixed choices. Each split point is tried at batch size 1, then the best
ones at 2, 4 and 8. The best choices of all meet the one of `auto`, in turns of changing order. Only these last turns
count, and they tell the best fixed choice. So a choice that was lucky in its first turn does not win. No choice has a
batch timeout.

The profile is measured beside the first search. The second search reads it from the database. The report is written
again after each model.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import Estimate, ratio
from benchmarks.common.picture import Panel
from benchmarks.common.report import Report, arguments, deliver, seconds_for_turns, show
from benchmarks.common.rows import in_ms, measured
from benchmarks.common.turns import Contest, take_turns
from benchmarks.common.yolo_sized import export, make_network
from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import Observer
from benchmarks.ros.pictures import draw_pictures
from benchmarks.ros.processes import set_up_middleware
from benchmarks.split_points.choices import AGE, HZ, IMAGES, Choice, Choices, Seconds

MODELS = ("mobilenet_v2", "efficientnet_b2", "vit_tiny", "resnet18")
YOLO = "yolo_sized"  # stands for the file that ``yolo_sized`` makes
LATENCY, THROUGHPUT = "latency", "throughput"
LOADS = {LATENCY: 0.5, THROUGHPUT: 1.5}  # times the frames a second that the pipeline serves at its default
NEAR = 1.03  # a choice that is at most so many times as bad as the best one is right
FULL = Seconds(search=300.0, settle=0.5, turn=1.2)
QUICK = Seconds(search=5.0, settle=0.3, turn=0.4)
FULL_S = 120.0  # seconds of turns of the best choices, for each model and objective


@dataclass(frozen=True, slots=True)
class Cell:
    """What one model and objective have shown.

    Attributes:
        model, objective: their names.
        chosen: the choice of ``auto``.
        contest: the last turns.
        is_over: whether the search was over when its choice was read.
    """

    model: str
    objective: str
    chosen: Choice
    contest: Contest
    is_over: bool = True

    @property
    def best(self) -> str:
        """The best fixed choice of the last turns, other than that of ``auto``."""
        figure, best = (AGE, min) if self.objective == LATENCY else (HZ, max)
        figures = self.contest.figures
        names = [name.removesuffix(f" {figure}") for name in figures if name.endswith(f" {figure}")]
        others = [name for name in names if name != str(self.chosen)]
        return best(others, key=lambda name: statistics.median(figures[f"{name} {figure}"]))


def claim_of(cell: Cell) -> Claim:
    """Returns the claim about one model and objective."""
    figures, turn_s = cell.contest.figures, cell.contest.turn_s

    def times(figure: str) -> Estimate:
        return ratio(figures[f"{cell.chosen} {figure}"], figures[f"{cell.best} {figure}"])

    if cell.objective == LATENCY:
        name = f"{cell.model}, latency: age p50, times that of the best fixed choice"
        return Claim(name, times(AGE), "x", NEAR, Direction.AT_MOST, turn_s=turn_s)
    name = f"{cell.model}, throughput: frames/s, times those of the best fixed choice"
    return Claim(name, times(HZ), "x", 1 / NEAR, turn_s=turn_s)


def measure(model: str, choices: Choices, seconds: float, cache: Path) -> list[Cell]:
    """Returns for each objective what ``auto`` has chosen for a model, and the turns of the best fixed choices."""
    capacity_hz, cells = choices.capacity_hz(cache), []
    for objective, load in LOADS.items():
        with choices.searching(objective, load * capacity_hz, cache) as (chosen, is_over):
            finalists = choices.finalists(chosen, partial(_merit, objective))
            contest = Contest(f"{model}, {objective}", partial(choices.turn, finalists))
            cell = Cell(model, objective, chosen, contest, is_over)
            contest.conclude = lambda _, cell=cell: [claim_of(cell)]
            take_turns([contest], seconds)
        cells.append(cell)
        show(row_of(cell))
    return cells


def _merit(objective: str, figures: dict[str, float]) -> float:
    return -figures[AGE] if objective == LATENCY else figures[HZ]


def row_of(cell: Cell) -> dict[str, Any]:
    """Returns the row of one model and objective."""
    best, chosen, figures = cell.best, cell.chosen, cell.contest.figures
    frames = {"chosen_frames_per_s": figures[f"{chosen} {HZ}"], "best_frames_per_s": figures[f"{best} {HZ}"]}
    ages = {"chosen_age_p50_ms": in_ms(figures[f"{chosen} {AGE}"]), "best_age_p50_ms": in_ms(figures[f"{best} {AGE}"])}
    about = {"what": cell.contest.name, "chosen": str(chosen), "best_fixed": best, "search_over": cell.is_over}
    return {**about, **measured(**frames, **ages)}


def report_of(cells: Sequence[Cell]) -> Report:
    """Returns the report: the claims, and the rows and figures behind them."""
    panels = []
    for cell in cells:
        figure, unit = (AGE, "ms") if cell.objective == LATENCY else (HZ, "1/s")
        names = {f"auto: {cell.chosen}": str(cell.chosen), f"fixed: {cell.best}": cell.best}
        samples = {title: cell.contest.figures[f"{name} {figure}"] for title, name in names.items()}
        scaled = {title: in_ms(each) if figure == AGE else each for title, each in samples.items()}
        panels.append(Panel(cell.contest.name, unit, scaled))
    return Report("split_points", list(map(claim_of, cells)), list(map(row_of, cells)), panels)


def main() -> int:
    """Runs the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--models", nargs="+", metavar="NAME", help=f"names, or ONNX files; default: {YOLO} and four more"
    )
    parser.add_argument("--engine", default="onnxruntime", metavar="NAME", help="default: onnxruntime")
    chosen = parser.parse_args()
    models = chosen.models or ([MODELS[0]] if chosen.quick else [*MODELS, YOLO])
    seconds = seconds_for_turns(chosen, 0.0 if chosen.quick else FULL_S)
    set_up_middleware()
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory() as folder:
        pictures, yolo = Path(folder, "pictures"), Path(folder, "yolo.onnx")
        draw_pictures(pictures)
        if YOLO in models:
            export(make_network(), yolo)
        with Feed(pictures, [IMAGES]) as feed, Observer() as observer:
            choices = Choices(observer, feed, chosen.engine, QUICK if chosen.quick else FULL)
            for model in models:
                choices.use(str(yolo) if model == YOLO else model)
                cells += measure(Path(model).stem, choices, seconds, Path(folder, f"cache {len(cells)}"))
                deliver(report_of(cells), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
