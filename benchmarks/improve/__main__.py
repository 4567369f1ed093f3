"""What looking for a faster engine costs and gains while frames flow, with a detector of the size of YOLOv8n.

A camera sends 640x480 images at 0.5 and at 1.5 times what a pipeline serves. At each load, three pipelines start one
after the other, each with an empty cache folder, in changing order:

- `background`: the default. It looks for a faster engine while it serves.
- `never`: it stays on the engine that it has by rule.
- `before_start`: it compared the engines before its first frame.

Frames and ages of `background` are compared with those of `never`, over the whole search. What it serves at its end is
compared with `before_start`. The picture shows the frames a second, and when another engine had its turn. A quick run
takes some minutes, because it compares engines three times.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import ratio
from benchmarks.common.picture import Curve, Panel
from benchmarks.common.report import Report, run_command, show
from benchmarks.common.rows import in_ms, measured
from benchmarks.common.turns import Contest, take_turns
from benchmarks.common.yolo_sized import export, make_network
from benchmarks.improve.search import BACKGROUND, BEFORE_START, NEVER, RIVALS, Searches
from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import Observer
from benchmarks.ros.pictures import draw_pictures
from benchmarks.ros.processes import seconds_of_turns, set_up_middleware

LOADS = (0.5, 1.5)  # times the frames a second that the pipeline serves
FULL_S = 3600.0
FULL_SEARCH_S, QUICK_SEARCH_S = 300.0, 10.0  # how long `background` is watched
FULL_END_S, QUICK_END_S = 30.0, 5.0  # and its end, like all of the other pipelines


def claims_of(load: float, contest: Contest) -> list[Claim]:
    """Returns the claims about one load."""
    figures, turn_s = contest.figures, contest.turn_s

    def claim(what: str, figure: str, rival: str, goal: float, direction: Direction = Direction.AT_LEAST) -> Claim:
        found = ratio(figures[f"{BACKGROUND} {figure}"], figures[f"{rival} {figure}"])
        return Claim(f"load {load:g}: {what}", found, "x", goal, direction, turn_s=turn_s)

    found = [
        claim("frames during the search, times those without it", "hz", NEVER, 0.99 if load < 1 else 0.95),
        claim("age p99 during the search, times that without it", "p99", NEVER, 1.3, Direction.AT_MOST),
    ]
    if load < 1:
        title = "age p50 at the end, times that after a comparison before the start"
        return [*found, claim(title, "end p50", BEFORE_START, 1 / 0.97, Direction.AT_MOST)]
    title = "frames at the end, times those after a comparison before the start"
    return [*found, claim(title, "end hz", BEFORE_START, 0.97)]


def report_of(contests: dict[float, Contest], curves: list[Curve]) -> Report:
    """Returns the report: the claims, and the rows, figures and curves behind them."""
    rows = []
    panels: list[Panel | Curve] = list(curves)
    for load, contest in contests.items():
        for rival in RIVALS:
            figures = {name: contest.figures[f"{rival} {name}"] for name in ("hz", "p50", "p99", "end hz", "end p50")}
            ages = {f"age_{name.replace(' ', '_')}_ms": in_ms(figures[name]) for name in ("p50", "p99", "end p50")}
            frames = {"frames_per_s": figures["hz"], "end_frames_per_s": figures["end hz"]}
            rows.append({"what": contest.name, "rival": rival, **measured(**frames, **ages)})
            show(rows[-1])
        panels.append(
            Panel(f"frames/s, load {load:g}", "1/s", {each: contest.figures[f"{each} hz"] for each in RIVALS})
        )
    claims = [each for load, contest in contests.items() for each in claims_of(load, contest)]
    return Report("improve", claims, rows, panels)


def run(chosen: argparse.Namespace) -> Report:
    """Starts the pipelines, measures, and returns the report."""
    set_up_middleware()
    with tempfile.TemporaryDirectory() as folder:
        pictures, model = Path(folder, "pictures"), Path(folder, "yolo.onnx")
        draw_pictures(pictures)
        export(make_network(), model)
        with Feed(pictures, [f"/{rival}/image" for rival in RIVALS]) as feed, Observer() as observer:
            search_s = QUICK_SEARCH_S if chosen.quick else FULL_SEARCH_S
            end_s = QUICK_END_S if chosen.quick else FULL_END_S
            searches = Searches(observer, feed, model=model, search_s=search_s, end_s=end_s)
            capacity_hz = searches.capacity_hz()
            contests = {
                load: Contest(f"load {load:g}", partial(searches.turn, load * capacity_hz), partial(claims_of, load))
                for load in LOADS
            }
            take_turns(list(contests.values()), seconds_of_turns(chosen, FULL_S))
    curves = searches.curves({f"load {load:g}": load * capacity_hz for load in LOADS})
    return report_of(contests, curves)


def main() -> int:
    """Runs the benchmark."""
    return run_command(__doc__, run)


if __name__ == "__main__":
    sys.exit(main())
