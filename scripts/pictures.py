"""Takes the pictures of the documentation from running programs and from results of benchmarks.

    scripts/run python scripts/pictures.py [NAME ...]

- ``detections``: the last frame of the demo, with its boxes.
- ``live``: the lines that the demo prints while it runs.
- ``trace``: batches that overlap in backbone and head, from the trace of a pipeline that ran.
- ``results``: claims of the newest results on a CPU with AVX-512, with their intervals.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
RUN = str(ROOT / "scripts" / "run")
DEMO_S = 8
TRACE_S = 12.0  # how long the traced pipeline runs, its start included
SHOWN_S = 0.25  # how many seconds of the trace are shown
CLAIMS = {  # parts of the names of the claims that are shown, by benchmark
    "pipeline": ("frames/s", "latency p50"),
    "transports": ("hop in process", "hop through shared memory at 20 MB, times faster"),
    "detector": ("frames/s", "latency p50"),
    "tuning": ("tuned, times as built", "tuned, times our untuned default"),
}


def detections() -> None:
    """Keeps the demo's last frame."""
    _demo("--picture", str(PICTURES / "detections.png"))


def live() -> None:
    """Draws the lines that the demo prints, as a terminal shows them."""
    lines = [line for line in _demo().splitlines() if line.strip()]
    width = max(map(len, lines))
    figure = plt.figure(figsize=(0.075 * width + 0.3, 0.19 * len(lines) + 0.25), facecolor="#1e1e1e")
    for number, line in enumerate(lines):
        height = 1 - (number + 0.9) / (len(lines) + 0.8)
        figure.text(0.015, height, line, family="monospace", size=8.5, color="#dddddd")
    _save(figure, "live")


def trace() -> None:
    """Draws a part of a trace: a row for each stage, a slice for each batch."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        settings = {"trace": str(file), "model": "mobilenet_v2", "weights": "random", "rate_hz": "0.0"}
        settings |= {"split_point": "features.10", "batch_size": "4", "engine": "torch"}
        arguments = [part for name, value in settings.items() for part in ("-p", f"{name}:={value}")]
        process = subprocess.Popen([RUN, "pipeline", "--ros-args", *arguments], stdout=subprocess.DEVNULL)
        time.sleep(TRACE_S)
        process.send_signal(signal.SIGINT)
        process.wait(60)
        events = read_trace(file)
    stages = list(dict.fromkeys(event["row"] for event in events))
    end = max(event["ts"] for event in events)
    shown = [event for event in events if end - 2e6 * SHOWN_S < event["ts"] < end - 1e6 * SHOWN_S]
    begin = min(event["ts"] for event in shown)
    batches = list(dict.fromkeys(event["name"] for event in shown))
    figure, axes = plt.subplots(figsize=(10, 0.6 * len(stages) + 1))
    for event in shown:
        bar = (event["ts"] - begin) / 1e3, event["dur"] / 1e3
        colour = f"C{batches.index(event['name']) % 10}"
        axes.broken_barh([bar], (stages.index(event["row"]) - 0.4, 0.8), color=colour, edgecolor="white")
        if bar[1] > 4:
            axes.text(
                bar[0] + bar[1] / 2, stages.index(event["row"]), event["name"].split()[-1], ha="center", va="center"
            )
    axes.set_yticks(range(len(stages)), stages)
    axes.invert_yaxis()
    axes.set_xlabel("ms; each colour and number is a batch")
    _save(figure, "trace")


def read_trace(file: Path) -> list[dict[str, Any]]:
    """Returns the slices of a trace in their order, each with the name of its row as ``row``."""
    content = json.loads(file.read_text().rstrip().rstrip(",").removesuffix("]") + "]")
    names = {
        (event["pid"], event["tid"]): event["args"]["name"] for event in content if event.get("name") == "thread_name"
    }
    slices = [event for event in content if event.get("ph") == "X"]
    return sorted(
        ({**event, "row": names.get((event["pid"], event["tid"]), str(event["tid"]))} for event in slices),
        key=lambda event: event["ts"],
    )


def results() -> None:
    """Draws claims with their intervals, goals and verdicts."""
    rows = []
    for bench, parts in CLAIMS.items():
        for file in sorted((ROOT / "docs" / "results").glob(f"{bench}*avx512*.json"))[:1]:
            claims = json.loads(file.read_text())["claims"]
            rows += [
                (bench, each) for each in claims if each["unit"] == "x" and any(part in each["name"] for part in parts)
            ]
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(rows) + 1))
    colours = {"holds": "#2a7f4f", "does not hold": "#b03030", "unclear": "#888888"}
    for number, (_, claim) in enumerate(rows):
        value, colour = claim["value"], colours[claim["verdict"]]
        error = [[value - claim["low"]], [claim["high"] - value]]
        axes.errorbar(value, number, xerr=error, fmt="o", color=colour, capsize=3)
        axes.plot([float(claim["goal"].split()[-1])] * 2, [number - 0.3, number + 0.3], color="black", linewidth=1)
    axes.set_yticks(range(len(rows)), [f"{bench}: {claim['name']}" for bench, claim in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(
        "ratio, with its 95 % interval; the black line is the goal; green holds, red does not, grey is unclear"
    )
    _save(figure, "results")


TAKEN: dict[str, Callable[[], None]] = {"detections": detections, "live": live, "trace": trace, "results": results}


def _demo(*arguments: str) -> str:
    command = [str(ROOT / "scripts" / "demo"), "--seconds", str(DEMO_S), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _save(figure: Any, name: str) -> None:
    figure.savefig(PICTURES / f"{name}.png", dpi=110, bbox_inches="tight", facecolor=figure.get_facecolor())
    plt.close(figure)


def main() -> int:
    """Takes the pictures that the arguments name, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TAKEN)}; all by default")
    chosen = parser.parse_args().names or list(TAKEN)
    unknown = [name for name in chosen if name not in TAKEN]
    if unknown:
        parser.error(f"there is no picture {unknown[0]}; there are {', '.join(TAKEN)}")
    PICTURES.mkdir(exist_ok=True)
    for name in chosen:
        TAKEN[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
