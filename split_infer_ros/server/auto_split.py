"""Chooses the best split point from the profile, and moves it when the stages' times drift while frames flow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from split_infer_ros.errors import ConfigurationError, error_sentence
from split_infer_ros.runtime.num_threads import use_one_thread
from split_infer_ros.runtime.worker_thread import WorkerThread
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.fusion_kind import FusionKind
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.controller import SplitController
from split_infer_ros.split.planner import Goal, plan
from split_infer_ros.split.profile import FindProfile

AUTO = "auto"
DEFAULT = "default"
ANY_BATCH_SIZE = 0
DWELL_S = 5.0  # how long another split point must be better before ``auto`` takes it
BATCH_SIZES = {"cpu": (1, 2, 4, 8), "cuda": (1, 4, 16, 64)}  # the batch sizes to choose among, by type of device


@dataclass(frozen=True, slots=True)
class FilledIn:
    """Settings in which ``AutoSplit`` has replaced ``auto``, ``default`` and batch size 0 by actual values.

    ``AutoSplit.adopt`` puts them in force.

    Attributes:
        settings: the complete settings.
        request: the requested split point, batch size and goal.
        controller: proposes moves of the split point from the times of batches; None if the split point must not move.
        note: a sentence for the user; empty if there is nothing to say.
    """

    settings: StageSettings
    request: tuple[str, int, Goal]
    controller: SplitController | None = None
    note: str = ""


class AutoSplit:
    """Chooses the split point and batch size of one model, and moves the split point while frames flow.

    Settings may leave values open: the split points ``auto`` and ``default``, and batch size 0. This class fills them
    in. With a split point other than ``auto``, batch size 0 means 1.

    Args:
        device_type: the type of device on which the backbone runs, ``cpu`` or ``cuda``.
        find_profile: returns the profile of the model.
        say: called with a sentence about each move of the split point, and about each move that failed.
        dwell_s: seconds for which another split point must be better before the pipeline moves to it.
        default: the split point that ``default`` stands for.
        more_sizes: batch sizes that are profiled but never chosen. Their times tell how long a batch should take if it
            is not full.
        lock: held while the split point changes; None: a lock of its own.
        thread: the thread that moves the split point; None: a thread of its own. If several ``AutoSplit`` share a
            thread, the owner of the thread starts and stops it.
    """

    def __init__(
        self,
        device_type: str,
        find_profile: FindProfile,
        say: Callable[[str], object],
        dwell_s: float,
        *,
        default: str = DEFAULT,
        more_sizes: Sequence[int] = (),
        lock: AbstractContextManager[object] | None = None,
        thread: WorkerThread[Callable[[], None]] | None = None,
    ) -> None:
        self._batch_sizes = BATCH_SIZES[device_type]
        self._find_profile = find_profile
        self._say = say
        self._dwell_s = dwell_s
        self._default = default
        self._more_sizes = more_sizes
        self._controller: SplitController | None = None
        self._requested: tuple[str, int, Goal] | None = None
        self._settings = StageSettings()
        self._configure: Callable[[StageSettings], None] = _refuse_without_stage
        self._lock = threading.Lock() if lock is None else lock
        self._thread = controller_thread() if thread is None else thread

    def begin(self, requested: StageSettings, goal: Goal) -> StageSettings:
        """Fills in the first settings, puts them in force and returns them. Measures times that the database lacks.

        Args:
            requested: the settings as the user gave them.
            goal: what split point ``auto`` optimises.

        Raises:
            ConfigurationError: the memory is too small for a batch size.
        """
        with self._lock:
            self.adopt(self.fill_in(requested, goal, may_measure=True))
            return self._settings

    def attach(self, configure: Callable[[StageSettings], None]) -> None:
        """Sets the function that applies settings to the model's stage. The function may raise ConfigurationError."""
        self._configure = configure

    def detach(self) -> None:
        """Forgets the function that ``attach`` set, and ignores batches from now on."""
        self._configure, self._controller = _refuse_without_stage, None

    def start(self) -> None:
        """Starts the thread that moves the split point. May be called again after ``stop``."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread that moves the split point."""
        self._thread.stop()

    def configure(self, requested: StageSettings, goal: Goal) -> None:
        """Fills in new settings, applies them to the stage and puts them in force.

        The split point stays where it was moved, unless the requested split point, batch size or goal changes.

        Args:
            requested: the settings as the user gave them.
            goal: what split point ``auto`` optimises.

        Raises:
            ConfigurationError: the stage refuses the settings, or there is no profile. The old settings stay.
        """
        with self._lock:
            filled = self.fill_in(requested, goal)
            self._configure(filled.settings)
            self.adopt(filled)

    def fill_in(self, requested: StageSettings, goal: Goal, *, may_measure: bool = False) -> FilledIn:
        """Returns the settings with open values filled in. Nothing changes until ``adopt`` is called with the result.

        The split point stays where it was moved, unless the requested split point, batch size or goal changes.

        Args:
            requested: the settings as the user gave them.
            goal: what split point ``auto`` optimises.
            may_measure: whether to measure the times that the database lacks. That takes a while.

        Raises:
            ConfigurationError: the database lacks times that may not be measured, or the memory is too small for a
                batch size.
        """
        request = requested.split_point, requested.batch_size, goal
        if request == self._requested:
            chosen = self._settings
            settings = replace(requested, split_point=chosen.split_point, batch_size=chosen.batch_size)
            return FilledIn(settings, request, self._controller)
        if requested.split_point != AUTO:
            name = self._default if requested.split_point == DEFAULT else requested.split_point
            return FilledIn(replace(requested, split_point=name, batch_size=requested.batch_size or 1), request)
        sizes = self._batch_sizes if requested.batch_size == ANY_BATCH_SIZE else (requested.batch_size,)
        profile = self._find_profile(sorted({*sizes, *self._more_sizes}), may_measure)
        choice = plan(profile, goal.objective, goal.latency_bound_s, batch_sizes=sizes)
        note = ""
        if not choice.within_bound:
            note = (
                f"No split point of {profile.model} keeps within {1e3 * goal.latency_bound_s:g} ms on this machine; "
                f"the one of the lowest latency is taken, {1e3 * choice.latency_s:.1f} ms."
            )
        controller = SplitController(
            profile, goal.objective, goal.latency_bound_s, dwell_s=self._dwell_s, batch_sizes=sizes
        )
        settings = replace(requested, split_point=choice.split_point, batch_size=choice.batch_size)
        return FilledIn(settings, request, controller, note)

    def adopt(self, filled: FilledIn) -> None:
        """Puts filled-in settings in force, and tells the user their note. The caller holds ``lock``."""
        self._settings, self._controller, self._requested = filled.settings, filled.controller, filled.request
        if filled.note:
            self._say(filled.note)

    def observe(self, batch: Batch) -> None:
        """Notes the times of a finished batch, whose timeline is complete. Never waits.

        A batch that was executed together with other models' batches is ignored, because its times are not its model's
        alone. Lanes compute batches side by side, so a batch's time in the backbone is divided by the number of lanes.
        """
        if self._controller is None or batch.fusion is not FusionKind.NONE:
            return
        times = batch.timeline
        examine = partial(
            self._examine,
            batch.plan.settings,
            num_images=len(batch.frames),
            backbone_s=(times.backbone_end - times.backbone_start) / batch.num_lanes,
            head_s=times.head_end - times.head_start,
            now=times.delivered,
        )
        self._thread.put(examine)

    def _examine(
        self, settings: StageSettings, *, num_images: int, backbone_s: float, head_s: float, now: float
    ) -> None:
        """Shows a batch to the controller, and moves the split point if the controller proposes so.

        Args:
            settings: the settings with which the batch ran.
            num_images: number of images in the batch.
            backbone_s, head_s: seconds in the backbone and in the head.
            now: when its results were out.
        """
        with self._lock:
            before = self._settings
            point = before.split_point, before.batch_size
            if self._controller is None or (settings.split_point, settings.batch_size) != point:
                return  # a batch from before the last change
            choice = self._controller.observe(
                *point, num_images=num_images, backbone_s=backbone_s, head_s=head_s, now=now
            )
            if choice is None:
                return
            after = replace(before, split_point=choice.split_point, batch_size=choice.batch_size)
            try:
                self._configure(after)
            except Exception as error:  # an exception would end the only thread that moves the split point
                self._controller.refuse(choice)
                self._say(f"The split point stays at {before.split_point}: {error_sentence(error)}")
                return
            self._settings = after
            self._say(
                f"The split point moves from {before.split_point} at batch size {before.batch_size} to "
                f"{choice.split_point} at {choice.batch_size}: {choice.throughput:.1f} images/s are expected, "
                f"{1e3 * choice.latency_s:.1f} ms."
            )


def controller_thread() -> WorkerThread[Callable[[], None]]:
    """Returns a thread for one or several ``AutoSplit``, on which split points move. The caller starts it."""
    return WorkerThread("controller", _call, use_one_thread)


def _call(work: Callable[[], None]) -> None:
    work()


def _refuse_without_stage(settings: StageSettings) -> None:
    raise ConfigurationError(f"There is no stage yet to run at {settings.split_point}.")
