"""Chooses the best split point from the profile, and moves it when the stages' times drift while frames flow."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from split_infer_ros.errors import ConfigurationError, error_sentence
from split_infer_ros.runtime.num_threads import use_one_thread
from split_infer_ros.runtime.worker_thread import WorkerThread
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.setting import MILLISECONDS, check_settings, setting
from split_infer_ros.split.controller import SplitController
from split_infer_ros.split.planner import Objective, plan
from split_infer_ros.split.profile import Profile

AUTO = "auto"
ANY_BATCH_SIZE = 0
BATCH_SIZES = {"cpu": (1, 2, 4, 8), "cuda": (1, 4, 16, 64)}  # to choose among, by type of device


@dataclass(frozen=True, slots=True)
class Goal:
    """What the best split point is best at; see the planner.

    Raises:
        ConfigurationError: a value is not accepted.
    """

    objective: Objective = setting(
        Objective.THROUGHPUT,
        "What split_point auto optimises: throughput or latency. With throughput, a CPU also computes two batches at "
        "the same time while frames come nearly as fast as it can process them one by one, or faster. This serves more "
        "frames, but each one takes longer.",
    )
    latency_bound_s: float = setting(
        math.inf,
        "The longest latency that split_point auto allows, from the closing of a batch to its results. 0: no limit.",
        minimum=0.0,
        maximum=60.0,
        unit=MILLISECONDS,
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class _FullBatch:
    """A full batch whose results are out.

    Attributes:
        settings: with which it ran.
        backbone_s, head_s: seconds in the backbone and in the head.
        time: when its results were out.
    """

    settings: StageSettings
    backbone_s: float
    head_s: float
    time: float


class AutoSplit:
    """Fills in the split point ``auto`` and the batch size 0 of settings.

    With any other split point, batch size 0 means 1.

    Args:
        device_type: where the backbone runs, ``cpu`` or ``cuda``.
        find_profile: returns the profile at the given batch sizes. The second argument says whether it may be
            measured, which takes a while. Raises ConfigurationError if there is no profile.
        say: is called with a line about each move, and about each move that could not be made.
        dwell_s: how long another split point must be better before the pipeline moves to it.
    """

    def __init__(
        self,
        device_type: str,
        find_profile: Callable[[Sequence[int], bool], Profile],
        say: Callable[[str], object],
        dwell_s: float,
    ) -> None:
        self._batch_sizes = BATCH_SIZES[device_type]
        self._find_profile = find_profile
        self._say = say
        self._dwell_s = dwell_s
        self._controller: SplitController | None = None
        self._requested: tuple[str, int, Goal] | None = None
        self._settings = StageSettings()
        self._configure: Callable[[StageSettings], None] = _refuse_without_stage
        self._lock = threading.Lock()
        self._thread = WorkerThread("controller", self._examine, use_one_thread)

    def begin(self, requested: StageSettings, goal: Goal) -> StageSettings:
        """Returns the first settings, complete. Measures what the database lacks.

        Raises:
            ConfigurationError: the memory is too small for a batch size.
        """
        with self._lock:
            self._settings, self._controller = self._fill_in(requested, goal, may_measure=True)
            self._requested = requested.split_point, requested.batch_size, goal
            return self._settings

    def attach(self, configure: Callable[[StageSettings], None]) -> None:
        """Sets the function that applies settings to the stage. It may raise ConfigurationError."""
        self._configure = configure

    def detach(self) -> None:
        """Forgets the stage."""
        self._configure = _refuse_without_stage

    def start(self) -> None:
        """Starts to move the split point. May be called again after ``stop``."""
        self._thread.start()

    def stop(self) -> None:
        """Stops moving the split point."""
        self._thread.stop()

    def configure(self, requested: StageSettings, goal: Goal) -> None:
        """Changes the settings.

        The split point stays where it was moved, unless the requested split point, batch size or goal changes.

        Raises:
            ConfigurationError: the stage refuses the settings, or there is no profile. The old settings stay.
        """
        with self._lock:
            choice_request = requested.split_point, requested.batch_size, goal
            controller = self._controller
            if choice_request == self._requested:
                chosen = self._settings
                settings = replace(requested, split_point=chosen.split_point, batch_size=chosen.batch_size)
            else:
                settings, controller = self._fill_in(requested, goal, may_measure=False)
            self._configure(settings)
            self._settings, self._controller, self._requested = settings, controller, choice_request

    def observe(self, batch: Batch) -> None:
        """Takes note of a batch whose results are out and whose timeline is complete. Never waits."""
        if self._controller is None or len(batch.frames) < batch.plan.settings.batch_size:
            return
        times = batch.timeline
        backbone_s, head_s = times.backbone_end - times.backbone_start, times.head_end - times.head_start
        self._thread.put(
            _FullBatch(settings=batch.plan.settings, backbone_s=backbone_s, head_s=head_s, time=times.delivered)
        )

    def _fill_in(
        self, requested: StageSettings, goal: Goal, may_measure: bool
    ) -> tuple[StageSettings, SplitController | None]:
        if requested.split_point != AUTO:
            return replace(requested, batch_size=requested.batch_size or 1), None
        sizes = self._batch_sizes if requested.batch_size == ANY_BATCH_SIZE else (requested.batch_size,)
        profile = self._find_profile(sizes, may_measure)
        choice = plan(profile, goal.objective, goal.latency_bound_s)
        if not choice.within_bound:
            self._say(
                f"No split point of {profile.model} keeps within {1e3 * goal.latency_bound_s:g} ms on this machine; "
                f"the one of the lowest latency is taken, {1e3 * choice.latency_s:.1f} ms."
            )
        controller = SplitController(
            profile, goal.objective, goal.latency_bound_s, dwell_s=self._dwell_s, batch_sizes=sizes
        )
        return replace(requested, split_point=choice.split_point, batch_size=choice.batch_size), controller

    def _examine(self, batch: _FullBatch) -> None:
        """Shows the controller a batch and does what it proposes."""
        with self._lock:
            before = self._settings
            batch_point = batch.settings.split_point, batch.settings.batch_size
            if self._controller is None or batch_point != (before.split_point, before.batch_size):
                return  # a batch from before the last change
            choice = self._controller.observe(
                before.split_point,
                before.batch_size,
                backbone_s=batch.backbone_s,
                head_s=batch.head_s,
                now=batch.time,
            )
            if choice is None:
                return
            after = replace(before, split_point=choice.split_point, batch_size=choice.batch_size)
            try:
                self._configure(after)
            except Exception as error:  # no other thread would move the split point
                self._controller.refuse(choice)
                self._say(f"The split point stays at {before.split_point}: {error_sentence(error)}")
                return
            self._settings = after
            self._say(
                f"The split point moves from {before.split_point} at batch size {before.batch_size} to "
                f"{choice.split_point} at {choice.batch_size}: {choice.throughput:.1f} images/s are expected, "
                f"{1e3 * choice.latency_s:.1f} ms."
            )


def _refuse_without_stage(settings: StageSettings) -> None:
    raise ConfigurationError(f"There is no stage yet to run at {settings.split_point}.")
