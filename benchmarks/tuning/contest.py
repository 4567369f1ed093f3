"""Lets a model's network take turns on one image: as built, untuned, tuned, and with vendors' libraries."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from benchmarks.common.claim import Claim
from benchmarks.common.estimate import NOTHING, Estimate, exact, minimum, ratio
from benchmarks.common.turns import Contest, rotated
from benchmarks.common.usage import Usage
from benchmarks.rivals.vendor_networks import VENDORS, Run, vendors_of
from split_infer_ros.autotuning.best_known import BestKnown, find_best_known
from split_infer_ros.autotuning.spaces import network_space
from split_infer_ros.autotuning.tasks import network_task
from split_infer_ros.autotuning.trial_process import TrialProcess
from split_infer_ros.autotuning.tune import Tuner
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.turns import timed
from split_infer_ros.runtime.num_threads import use_all_threads, use_one_thread
from split_infer_ros.split.load import build_model, load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.telemetry.machine import num_cores

BUILT, UNTUNED, TUNED = "as built", "untuned", "tuned"
READ = "its record read"
GOALS = {"mobilenet_v2": 1.5, "squeezenet1_0": 1.5, "ssdlite320": 1.5, "resnet50": 1.25}  # as many times as fast
OF_VENDORS = 0.9
MIN_SEARCH_S = 30.0  # the shortest search for a claim against vendors
WARM_UP = 3  # calls before the timed ones; convolutions are packed at the second call
PAUSE_S = 0.05  # in this pause, the waiting threads of one rival go to sleep
# The paper's figures on an Intel, an ARM Mali and an NVIDIA integrated GPU, as far as it has them.
TABLE_5 = {
    "mobilenet_v2": "6.52, 8.31 and 7.52 (MobileNet v1)",
    "squeezenet1_0": "1.23, 12.78 and 39.3",
    "resnet50": "1.4, 2.1 and 9.56 (ResNet-50 v1)",
}
TABLES_1_TO_3 = {
    "mobilenet_v2": "0.62, 1.21 and 1.49 (MobileNet v1)",
    "squeezenet1_0": "0.81, 1.16 and 1.62",
    "ssdlite320": "none, 0.89 and 1.47 (SSD with MobileNet v1)",
    "resnet50": "1.09, 1.04 and 1.03 (ResNet-50 v1)",
}

Row = Mapping[str, Any]


class Rivals:
    """Tunes a model, and then lets the ways to run its network take turns.

    Args:
        name: the model's name.
        device: the device that runs the model.
        database: keeps the trials.
        seconds: how long the model is tuned.
        group_s: how many seconds each network is called in a turn; at least one call.
        quick_export: whether the network is exported for vendors in the quick way; see ``quickly`` of ``vendors_of``.

    Attributes:
        contest: the contest of the ways to run the network.
    """

    def __init__(
        self, name: str, device: torch.device, database: Database, seconds: float, group_s: float, quick_export: bool
    ) -> None:
        use_one_thread()  # threads that another model left would take cores from the trials
        spec = ModelSpec(name, "random", str(device))
        self._model, self._database, self._group_s = load_model(spec), database, group_s
        with TrialProcess(spec) as runner:
            self._best = Tuner(self._model, runner, database).tune_network(time.monotonic() + seconds)
        self._searched_s = seconds
        self._notes: list[str] = []  # on vendors' networks
        best_known = find_best_known(self._model, database)
        self._ways = networks(name, self._model, best_known, quick_export, self._notes.append)
        self._trials = len(database.find(Key.here(str(self._model.device)), network_task(self._model, 1)))
        self._usage = Usage()
        self.contest = Contest(name, self._turn, lambda contest: claims_of_model(self._sampled()))
        with torch.inference_mode():
            use_all_threads()
            for run in self._ways.values():
                for _ in range(WARM_UP):
                    run()

    def row(self) -> Row:
        """Returns the row of this model: the figures of each way to run it, and the tuned configuration."""
        figures, best = self.contest.figures, self._best
        return {
            "what": "model",
            **self._sampled(),
            **{f"{way}_ms": 1e3 * statistics.median(figures[way]) for way in self._ways},
            "config": {} if best is None else dict(best.config),
            "notes": "; ".join(self._notes),
            "difference": None if best is None else best.facts.get("difference"),
            "read_ms": [round(1e3 * each, 3) for each in figures[READ]],
            "usage": {way: self._usage.row(way) for way in self._ways},
        }

    def _sampled(self) -> Row:
        """Returns the part of the row from which claims are made.

        Samples are each turn's median call, in milliseconds.
        """
        default = network_space(num_cores(), device=self._model.device.type).default
        figures = self.contest.figures
        return {
            "model": self.contest.name,
            "samples": {way: [round(1e3 * each, 5) for each in figures[way]] for way in self._ways},
            "searched_s": self._searched_s,
            "trials": self._trials,
            "keeps_default": self._best is None or dict(self._best.config) == default,
            "turn_s": self.contest.turn_s,
        }

    def _turn(self, number: int) -> dict[str, float]:
        figures = {}
        use_all_threads()
        with torch.inference_mode():
            for way in rotated(list(self._ways), number):
                time.sleep(PAUSE_S)
                self._ways[way]()  # wakes up its threads
                with self._usage.of(way):
                    figures[way] = statistics.median(timed(self._ways[way], self._group_s))
        return {**figures, READ: find_best_known(self._model, self._database).read_s}


def networks(
    name: str, model: SplitModel, tuned: BestKnown, quick_export: bool, say: Callable[[str], None]
) -> dict[str, Run]:
    """Returns functions that run a model's network on one image, by name: as built, untuned, tuned, and by vendors.

    Args:
        name: the model's name.
        model: the model as it runs untuned.
        tuned: the best records of the model.
        quick_export: whether the network is exported for vendors in the quick way; see ``quickly`` of ``vendors_of``.
        say: called with sentences about the vendors' libraries; see ``vendors_of``.
    """
    _, module = build_model(ModelSpec(name, "random"))
    module = module.to(model.device)
    images = torch.randn((1, *model.entry.image_shape), generator=torch.Generator().manual_seed(0)).to(model.device)
    laid_out = images.contiguous(memory_format=torch.channels_last)
    untuned = model.backbone("output")
    config = tuned.execution_config
    best = load_model(ModelSpec(name, weights="random", device=str(model.device), execution_config=config)).backbone(
        "output"
    )
    as_engine_reads = images.contiguous(
        memory_format=torch.channels_last if config.engine.reads_channels_last else torch.contiguous_format
    )
    threads = config.threads

    def run_on_fewer() -> None:
        config.engine.use_threads(threads)
        best(as_engine_reads)
        use_all_threads()

    run_tuned = run_on_fewer if threads else lambda: best(as_engine_reads)
    ours = {BUILT: lambda: module(images), UNTUNED: lambda: untuned(laid_out), TUNED: run_tuned}
    ways = {**ours, **vendors_of(module, images, num_cores(), quick_export, say)}
    return {way: to_its_end(call, model.device) for way, call in ways.items()}


def to_its_end(call: Run, device: torch.device) -> Run:
    """Returns a function that runs ``call`` and, on a GPU, waits until the GPU has finished."""
    if device.type != "cuda":
        return call

    def run() -> None:
        call()
        torch.cuda.synchronize(device)

    return run


def claims_of_model(row: Row) -> list[Claim]:
    """Returns the claims about a model, from the ratios of its row's samples."""
    name, samples, turn_s = row["model"], row["samples"], row["turn_s"]
    built = ratio(samples[BUILT], samples[TUNED])
    untuned = ratio(samples[UNTUNED], samples[TUNED])
    if row["keeps_default"]:
        # Both are the same network, so their times differ only by chance. Without other trials, that shows nothing.
        untuned = exact(1.0) if row["trials"] > 1 else NOTHING
    paper = TABLE_5.get(name, "")
    claims = [
        Claim(f"{name}, tuned, times as built", built, "x", GOALS.get(name, 1.0), turn_s=turn_s),
        Claim(f"{name}, tuned, times our untuned default", untuned, "x", 1.0, turn_s=turn_s, paper=paper),
    ]
    if name in GOALS:
        claim, paper = f"{name}, tuned, times the best vendor's library in fp32", TABLES_1_TO_3[name]
        claims.append(Claim(claim, times_vendors(row), "x", OF_VENDORS, turn_s=turn_s, paper=paper))
    return claims


def times_vendors(row: Row) -> Estimate:
    """Returns the time of the fastest vendor's library in fp32, divided by that of the tuned network.

    Returns NaN if no library took part, or if the search was shorter than ``MIN_SEARCH_S``. A short search finds
    another configuration each time, and these configurations differ by more than the claim's margin. So one of them is
    no sound sample, however many turns it has.
    """
    if row["searched_s"] < MIN_SEARCH_S:
        return NOTHING
    samples: Mapping[str, Sequence[float]] = row["samples"]
    return minimum([ratio(samples[vendor], samples[TUNED]) for vendor in VENDORS if vendor in samples])
