"""Chooses the best split point from the profile, then moves it as the stages' times drift while frames flow."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.pipeline.in_flight import InFlightBatch
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.runtime.num_threads import use_one_thread
from split_infer_ros.runtime.worker_thread import WorkerThread
from split_infer_ros.split.controller import SplitController
from split_infer_ros.split.planner import THROUGHPUT, plan
from split_infer_ros.split.profile import Profile

AUTO = "auto"
ANY_BATCH_SIZE = 0
BATCH_SIZES = {"cpu": (1, 2, 4, 8), "cuda": (1, 4, 16, 64)}  # by type of device: those to choose among


@dataclass(frozen=True, slots=True)
class Goal:
    """What the best split point is best at; see the planner.

    Attributes:
        objective: ``throughput`` or ``latency``.
        latency_bound_s: of a batch from its closing until its results are out, seconds.
    """

    objective: str = THROUGHPUT
    latency_bound_s: float = math.inf


@dataclass(frozen=True, slots=True)
class _Seen:
    """A full batch that came back: seconds in the backbone and in the head, and when that was."""

    settings: StageSettings
    backbone_s: float
    head_s: float
    time: float


class AutoSplit:
    """Fills in what settings leave open: split point ``auto``, batch size 0 (of any other split point: 1).

    Args:
        device_type: ``cpu`` or ``cuda``: where the backbone runs.
        find_profile: gives the profile at these batch sizes; the second argument says whether it may be measured,
            which takes a while. Raises ConfigurationError where there is none.
        say: told of each move, and of moves that could not be made.
        dwell_s: for so long another split point must be better before it is taken.
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
        self._wanted: tuple[str, int, Goal] | None = None
        self._settings = StageSettings()
        self._configure: Callable[[StageSettings], None] = _nowhere
        self._lock = threading.Lock()
        self._watch = WorkerThread("controller", self._look, use_one_thread)

    def begin(self, wanted: StageSettings, goal: Goal) -> StageSettings:
        """The first settings, with nothing left open; measures what the database lacks.

        Raises:
            ConfigurationError: a batch size is too large for the memory.
        """
        with self._lock:
            self._settings, self._controller = self._fill_in(wanted, goal, may_measure=True)
            self._wanted = wanted.split_point, wanted.batch_size, goal
            return self._settings

    def attach(self, configure: Callable[[StageSettings], None]) -> None:
        """Say who puts settings in force: the stage, which may refuse them by a ConfigurationError."""
        self._configure = configure

    def detach(self) -> None:
        """Let go of the stage, which is of no more use."""
        self._configure = _nowhere

    def start(self) -> None:
        """Watch and move until stop; may be started again."""
        self._watch.start()

    def stop(self) -> None:
        """Move no more."""
        self._watch.stop()

    def configure(self, wanted: StageSettings, goal: Goal) -> None:
        """Change settings; the split point stays where it was moved unless what it depends on changes.

        Raises:
            ConfigurationError: the stage refuses them, or there is no profile; the old ones stay in force.
        """
        with self._lock:
            asked = wanted.split_point, wanted.batch_size, goal
            if asked == self._wanted:
                now = self._settings
                settings, controller = (
                    replace(wanted, split_point=now.split_point, batch_size=now.batch_size),
                    self._controller,
                )
            else:
                settings, controller = self._fill_in(wanted, goal, may_measure=False)
            self._configure(settings)
            self._settings, self._controller, self._wanted = settings, controller, asked

    def observe(self, batch: InFlightBatch) -> None:
        """A batch came back, its timeline complete; never waits."""
        if self._controller is None or len(batch.frames) < batch.plan.settings.batch_size:
            return
        times = batch.timeline
        backbone_s, head_s = times.backbone_end - times.backbone_start, times.head_end - times.head_start
        self._watch.put(_Seen(batch.plan.settings, backbone_s, head_s, times.delivered))

    def _fill_in(
        self, wanted: StageSettings, goal: Goal, may_measure: bool
    ) -> tuple[StageSettings, SplitController | None]:
        if wanted.split_point != AUTO:
            return replace(wanted, batch_size=wanted.batch_size or 1), None
        sizes = self._batch_sizes if wanted.batch_size == ANY_BATCH_SIZE else (wanted.batch_size,)
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
        return replace(wanted, split_point=choice.split_point, batch_size=choice.batch_size), controller

    def _look(self, seen: _Seen) -> None:
        """Have the mover see a batch, and do what it proposes."""
        with self._lock:
            before = self._settings
            place = before.split_point, before.batch_size
            if self._controller is None or (seen.settings.split_point, seen.settings.batch_size) != place:
                return  # a batch from before the last change
            choice = self._controller.observe(*place, seen.backbone_s, seen.head_s, seen.time)
            if choice is None:
                return
            after = replace(before, split_point=choice.split_point, batch_size=choice.batch_size)
            try:
                self._configure(after)
            except ConfigurationError as error:
                self._controller.refuse(choice)
                self._say(f"The split point stays at {before.split_point}: {error}")
                return
            self._settings = after
            self._say(
                f"The split point moves from {before.split_point} at batch size {before.batch_size} to "
                f"{choice.split_point} at {choice.batch_size}: {choice.throughput:.1f} images/s are expected, "
                f"{1e3 * choice.latency_s:.1f} ms."
            )


def _nowhere(settings: StageSettings) -> None:
    raise ConfigurationError(f"There is no stage yet to run at {settings.split_point}.")
