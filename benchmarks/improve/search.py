"""The turns of the benchmark ``improve``: it starts each pipeline with an empty cache, and watches what it serves."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.common.picture import Curve
from benchmarks.common.turns import rotated
from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import Arrivals, Observer
from benchmarks.ros.processes import Processes
from split_infer_ros.msg import PipelineReport

BACKGROUND, NEVER, BEFORE_START = RIVALS = ("background", "never", "before_start")
FLOOD_HZ = 60.0
SETTLE_S = 3.0
PERIOD_S = 5.0  # of the picture's points


class Searches:
    """Starts the pipelines one after the other, and measures them.

    Args:
        observer: receives detections and reports.
        feed: sends the images.
        model: the ONNX file.
        search_s: for how many seconds ``background`` is watched.
        end_s: for how many more seconds it is watched then. The other pipelines are watched only for as long.

    Attributes:
        seen: by images a second, the last search: when detections arrived, and which engine ran from when on. Times are
            seconds since the first detection.
    """

    def __init__(self, observer: Observer, feed: Feed, *, model: Path, search_s: float, end_s: float) -> None:
        self._feed = feed
        self._model = str(model)
        self._search_s, self._end_s = search_s, end_s
        self._arrivals = {rival: Arrivals(observer, f"/{rival}/detections") for rival in RIVALS}
        self._engines: dict[str, list[tuple[float, str]]] = {rival: [] for rival in RIVALS}
        self.seen: dict[float, tuple[list[float], list[tuple[float, str]]]] = {}
        for rival in RIVALS:
            observer.subscribe(PipelineReport, f"/{rival}/report", partial(self._note, rival))

    def capacity_hz(self) -> float:
        """Returns the frames a second that a pipeline serves if its camera is too fast."""
        with tempfile.TemporaryDirectory() as cache, Processes() as processes:
            self._start(processes, BEFORE_START, Path(cache), FLOOD_HZ)
            hz, _ = self._arrivals[BEFORE_START].during(self._end_s)
            self._feed.rate(f"/{BEFORE_START}/image", 0.0)
        return hz

    def turn(self, rate_hz: float, number: int) -> dict[str, float]:
        """Starts each rival once with a camera of ``rate_hz`` images a second. Returns its figures."""
        found: dict[str, float] = {}
        for rival in rotated(RIVALS, number):
            with tempfile.TemporaryDirectory() as cache, Processes() as processes:
                self._start(processes, rival, Path(cache), rate_hz)
                found |= {f"{rival} {name}": value for name, value in self._watch(rival, rate_hz).items()}
                self._feed.rate(f"/{rival}/image", 0.0)
        return found

    def curves(self, loads: dict[str, float]) -> list[Curve]:
        """Returns for each load what the last search served, and when another engine had its turn.

        Args:
            loads: the images a second of each load, by name.
        """
        curves = []
        for name, rate_hz in loads.items():
            if rate_hz not in self.seen:
                continue
            times, engines = self.seen[rate_hz]
            periods = np.arange(0.0, self._search_s + PERIOD_S, PERIOD_S)
            counts, _ = np.histogram(times, periods)
            served = [(float(at), float(count) / PERIOD_S) for at, count in zip(periods, counts, strict=False)]
            highest = max((hz for _, hz in served), default=1.0)
            other = [(at, highest if engine != engines[0][1] else 0.0) for at, engine in engines]
            points = {"frames a second": served, "another engine runs (high)": other or [(0.0, 0.0)]}
            curves.append(Curve(f"search, {name}", "seconds since the first detection", "1/s", points))
        return curves

    def _start(self, processes: Processes, rival: str, cache: Path, rate_hz: float) -> None:
        """Starts a pipeline, and waits until it has served for a while."""
        self._engines[rival].clear()
        processes.start(
            ["-m", "split_infer_ros", "pipeline"],
            rival,
            environment={"XDG_CACHE_HOME": str(cache)},
            model=self._model,
            improve=rival,
            precision="fp32",
            source="none",
        )
        self._feed.rate(f"/{rival}/image", rate_hz)
        self._arrivals[rival].wait_for_first()
        self._arrivals[rival].settle(SETTLE_S)

    def _watch(self, rival: str, rate_hz: float) -> dict[str, float]:
        """Returns the figures of a pipeline that serves: frames a second and ages in seconds, in all and at the end."""
        arrivals = self._arrivals[rival]
        begin, first = time.monotonic(), arrivals.count
        if rival == BACKGROUND:
            time.sleep(self._search_s)
        end_hz, end_ages = arrivals.during(self._end_s)
        seconds, seen = time.monotonic() - begin, arrivals.since(first)
        if rival == BACKGROUND:
            engines = [(at - begin, engine) for at, engine in self._engines[rival] if at >= begin]
            self.seen[rate_hz] = [at - begin for at, _ in seen], _changes(engines)
        p50, p99 = np.percentile([age for _, age in seen], [50, 99])
        end = {"end hz": end_hz, "end p50": float(np.median(end_ages))}
        return {"hz": len(seen) / seconds, "p50": float(p50), "p99": float(p99), **end}

    def _note(self, rival: str, report: PipelineReport) -> None:
        self._engines[rival].append((time.monotonic(), report.engine))


def _changes(engines: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Returns the first entry, and each one whose engine differs from the one before."""
    return [*engines[:1], *(after for before, after in pairwise(engines) if before[1] != after[1])]
