"""The turns of the benchmark ``split_points``: ``auto`` chooses, then fixed choices run in the same pipeline."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.turns import rotated
from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import Arrivals, Observer
from benchmarks.ros.processes import Processes
from split_infer_ros.msg import PipelineReport
from split_infer_ros.server.improving.improver import GOES_ON
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec

NAMESPACE = "pipeline"
NODE, IMAGES = f"/{NAMESPACE}/backbone", f"/{NAMESPACE}/image"
HZ, AGE = "frames/s", "age p50"
FLOOD_HZ = 200.0
SIZES = (2, 4, 8)  # batch sizes that the best split points of batch size 1 run with, too
NUM_FINALISTS = 3
NUM_GROWN = 4  # split points that run with ``SIZES``
POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long each part takes.

    Attributes:
        search: for how long ``auto`` may search.
        settle: how long a choice runs before it is measured.
        turn: how long a choice is measured.
    """

    search: float
    settle: float
    turn: float


@dataclass(frozen=True, slots=True)
class Choice:
    """A split point, by its name, and a batch size."""

    split_point: str
    batch_size: int

    def __str__(self) -> str:
        return f"{self.split_point}, batch {self.batch_size}"


class Choices:
    """Lets a pipeline choose, and measures fixed choices in it.

    Args:
        observer: receives detections and reports.
        feed: sends the images.
        engine: executes the model.
        seconds: how long each part takes.
    """

    def __init__(self, observer: Observer, feed: Feed, engine: str, seconds: Seconds) -> None:
        self._observer, self._feed = observer, feed
        self._engine, self._seconds = engine, seconds
        self._arrivals = Arrivals(observer, f"/{NAMESPACE}/detections")
        self._report: PipelineReport | None = None
        self._model = self._weights = ""
        self._names: list[str] = []
        observer.subscribe(PipelineReport, f"/{NAMESPACE}/report", self._note)

    def use(self, model: str) -> None:
        """Measures this model from now on: a name of the catalogue, or a file."""
        self._model, self._weights = model, "default" if model.endswith(".onnx") else "random"
        loaded = load_model(ModelSpec(model, weights=self._weights, device="cpu"))
        self._names = [point.name for point in loaded.split_points]

    def capacity_hz(self, cache: Path) -> float:
        """Returns the frames a second that a pipeline serves at its default if its camera is too fast."""
        with Processes() as processes:
            self._start(processes, cache, FLOOD_HZ, improve="never", objective="throughput")
            hz = self.measure()[HZ]
            self._feed.rate(IMAGES, 0.0)
        return hz

    @contextmanager
    def searching(self, objective: str, rate_hz: float, cache: Path) -> Iterator[tuple[Choice, bool]]:
        """Starts a pipeline, which runs until the block ends. Returns its choice, and whether its search was over."""
        with Processes() as processes:
            self._start(processes, cache, rate_hz, objective=objective, split_point="auto", batch_size=0)
            yield self._chosen()
            self._feed.rate(IMAGES, 0.0)

    def finalists(self, chosen: Choice, merit: Callable[[dict[str, float]], float]) -> list[Choice]:
        """Returns the choice of ``auto``, and the best fixed choices of one turn each.

        Args:
            chosen: the choice of ``auto``.
            merit: says how good a turn's figures are; more is better.
        """
        merits: dict[Choice, float] = {}

        def ranked() -> list[Choice]:
            return sorted(merits, key=lambda choice: -merits[choice])

        for name in self._names:
            merits[Choice(name, 1)] = merit(self._run(Choice(name, 1)))
        for grown in ranked()[:NUM_GROWN]:
            for size in SIZES:
                merits[Choice(grown.split_point, size)] = merit(self._run(Choice(grown.split_point, size)))
        return [chosen, *[choice for choice in ranked() if choice != chosen][:NUM_FINALISTS]]

    def turn(self, finalists: Sequence[Choice], number: int) -> dict[str, float]:
        """Runs each finalist once, in changing order. Returns their figures by name."""
        by_name = {str(choice): choice for choice in finalists}
        return {
            f"{name} {figure}": value
            for name in rotated(list(by_name), number)
            for figure, value in self._run(by_name[name]).items()
        }

    def measure(self) -> dict[str, float]:
        """Returns the frames a second of what runs now, and the median age of its results in seconds."""
        self._arrivals.settle(self._seconds.settle)
        hz, ages = self._arrivals.during(self._seconds.turn)
        return {HZ: hz, AGE: statistics.median(ages)}

    def _run(self, choice: Choice) -> dict[str, float]:
        self._observer.set(NODE, split_point=choice.split_point, batch_size=choice.batch_size, batch_timeout_ms=0.0)
        return self.measure()

    def _chosen(self) -> tuple[Choice, bool]:
        """Waits until the search is over. Returns what serves then, and whether the search was over in time."""
        is_over = False
        end = time.monotonic() + self._seconds.search
        while not is_over and time.monotonic() < end:
            time.sleep(POLL_S)
            found = "" if self._report is None else self._report.improvement
            is_over = bool(found) and not found.endswith(GOES_ON)
        assert self._report is not None, "the pipeline has served frames, so it has published reports"
        print(f"{self._model}: {self._report.improvement}", flush=True)
        return Choice(self._report.split_point, self._report.batch_size), is_over

    def _start(self, processes: Processes, cache: Path, rate_hz: float, **parameters: str | int) -> None:
        """Starts a pipeline, and waits until it serves."""
        self._report = None
        processes.start(
            ["-m", "split_infer_ros", "pipeline"],
            NAMESPACE,
            environment={"XDG_CACHE_HOME": str(cache)},
            model=self._model,
            weights=self._weights,
            engine=self._engine,
            precision="fp32",
            source="none",
            **parameters,
        )
        self._feed.rate(IMAGES, rate_hz)
        self._arrivals.wait_for_first()

    def _note(self, report: PipelineReport) -> None:
        self._report = report
