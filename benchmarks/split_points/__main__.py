"""What ``split_point: auto`` chooses while frames flow, against the best fixed split point and batch size.

A pipeline starts with `split_point: auto` and batch size 0. Its engine is fixed. It gets frames at a constant rate:

- `latency`: objective `latency`, with half of the frames that it can serve. The age of the results decides.
- `throughput`: objective `throughput`, with 1.5 times as many as it can serve. The frames a second decide.

Once it has chosen, the same pipeline runs with fixed choices. Each split point is tried at batch size 1, then the best
ones at 2, 4 and 8. The best choices of all meet the one of `auto`, in turns of changing order. Only these last turns
count, and they tell the best fixed choice. So a choice that was lucky in its first turn does not win. No choice has a
batch timeout.

The profile is measured beside the first search. The second search reads it from the database.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
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
from benchmarks.split_points.choices import AGE, HZ, NAMESPACE, Choice, Choices, Seconds

MODELS = ("mobilenet_v2", "efficientnet_b2", "vit_tiny", "resnet18")
YOLO = "yolo_sized"  # stands for the file that ``yolo_sized`` makes
LATENCY, THROUGHPUT = "latency", "throughput"
LOADS = {LATENCY: 0.5, THROUGHPUT: 1.5}  # times the frames a second that the pipeline serves at its default
NEAR = 1.03  # a choice that is at most so many times as bad as the best one is right
FULL = Seconds(search=300.0, settle=0.5, turn=1.2)
QUICK = Seconds(search=5.0, settle=0.3, turn=0.4)
FULL_S = 120.0  # seconds of turns of the best choices, for each model and objective


def best_of(objective: str, contest: Contest, chosen: Choice) -> str:
    """Returns the best fixed choice of the last turns, other than that of ``auto``."""
    figure, best = (AGE, min) if objective == LATENCY else (HZ, max)
    fixed = [name.removesuffix(f" {figure}") for name in contest.figures if name.endswith(f" {figure}")]
    others = [name for name in fixed if name != str(chosen)]
    return best(others, key=lambda name: statistics.median(contest.figures[f"{name} {figure}"]))


def claims_of(model: str, objective: str, chosen: Choice, contest: Contest) -> list[Claim]:
    """Returns the claim about one model and objective."""
    figures, best = contest.figures, best_of(objective, contest, chosen)

    def times(figure: str) -> Estimate:
        return ratio(figures[f"{chosen} {figure}"], figures[f"{best} {figure}"])

    if objective == LATENCY:
        name = f"{model}, latency: age p50, times that of the best fixed choice"
        return [Claim(name, times(AGE), "x", NEAR, Direction.AT_MOST, turn_s=contest.turn_s)]
    name = f"{model}, throughput: frames/s, times those of the best fixed choice"
    return [Claim(name, times(HZ), "x", 1 / NEAR, turn_s=contest.turn_s)]


def measure(model: str, choices: Choices, seconds: float, cache: Path) -> list[tuple[str, Choice, Contest]]:
    """Returns for each objective what ``auto`` has chosen for a model, and the turns of the best fixed choices."""
    capacity_hz, found = choices.capacity_hz(cache), []
    for objective, load in LOADS.items():
        with choices.searching(objective, load * capacity_hz, cache) as chosen:
            finalists = choices.finalists(chosen, partial(_merit, objective))
            contest = Contest(
                f"{model}, {objective}",
                partial(choices.turn, finalists),
                partial(claims_of, model, objective, chosen),
            )
            take_turns([contest], seconds)
        found.append((objective, chosen, contest))
        show(row_of(model, objective, chosen, contest))
    return found


def _merit(objective: str, figures: dict[str, float]) -> float:
    return -figures[AGE] if objective == LATENCY else figures[HZ]


def row_of(model: str, objective: str, chosen: Choice, contest: Contest) -> dict[str, Any]:
    """Returns the row of one model and objective."""
    best, figures = best_of(objective, contest, chosen), contest.figures
    frames = {"chosen_frames_per_s": figures[f"{chosen} {HZ}"], "best_frames_per_s": figures[f"{best} {HZ}"]}
    ages = {"chosen_age_p50_ms": in_ms(figures[f"{chosen} {AGE}"]), "best_age_p50_ms": in_ms(figures[f"{best} {AGE}"])}
    return {"what": f"{model}, {objective}", "chosen": str(chosen), "best_fixed": best, **measured(**frames, **ages)}


def report_of(found: dict[str, list[tuple[str, Choice, Contest]]]) -> Report:
    """Returns the report: the claims, and the rows and figures behind them."""
    claims: list[Claim] = []
    rows, panels = [], []
    for model, cells in found.items():
        for objective, chosen, contest in cells:
            claims += claims_of(model, objective, chosen, contest)
            rows.append(row_of(model, objective, chosen, contest))
            figure, unit = (AGE, "ms") if objective == LATENCY else (HZ, "1/s")
            names = {f"auto: {chosen}": str(chosen), f"fixed: {(best := best_of(objective, contest, chosen))}": best}
            samples = {title: contest.figures[f"{name} {figure}"] for title, name in names.items()}
            scaled = {title: in_ms(each) if objective == LATENCY else each for title, each in samples.items()}
            panels.append(Panel(f"{model}, {objective}", unit, scaled))
    return Report("split_points", claims, rows, panels)


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
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        pictures, yolo = Path(folder, "pictures"), Path(folder, "yolo.onnx")
        draw_pictures(pictures)
        if YOLO in models:
            export(make_network(), yolo)
        with Feed(pictures, [f"/{NAMESPACE}/image"]) as feed, Observer() as observer:
            choices = Choices(observer, feed, chosen.engine, QUICK if chosen.quick else FULL)
            for model in models:
                choices.use(str(yolo) if model == YOLO else model)
                cache = Path(folder, f"cache {len(found)}")
                found[Path(model).stem] = measure(Path(model).stem, choices, seconds, cache)
    deliver(report_of(found), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
