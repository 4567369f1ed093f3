"""Chooses the best split point from the profile, and moves it when the stages' times drift while frames flow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from split_infer_ros.errors import ConfigurationError, error_sentence
from split_infer_ros.runtime.num_threads import use_one_thread
from split_infer_ros.runtime.worker_thread import WorkerThread
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.fusion_kind import FusionKind
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.split_chooser import AUTO, FilledIn, Request, SplitChooser, fill_in
from split_infer_ros.split.controller import SplitController
from split_infer_ros.split.planner import Goal, SplitChoice
from split_infer_ros.split.profile import FindProfile
from split_infer_ros.telemetry.heat import Processor


class AutoSplit:
    """Chooses the split point and batch size of one model, and moves the split point while frames flow.

    Settings may leave values open: the split points ``auto`` and ``default``, and batch size 0. This class fills them
    in. With a split point other than ``auto``, batch size 0 means 1.

    Args:
        chooser: chooses the split point and batch size from the model's profile.
        say: called with a sentence about each move of the split point, and about each move that failed.
        lock: held while the split point changes; None: a lock of its own.
        thread: the thread that moves the split point; None: a thread of its own. If several ``AutoSplit`` share a
            thread, the owner of the thread starts and stops it.
    """

    def __init__(
        self,
        chooser: SplitChooser,
        say: Callable[[str], object],
        *,
        lock: AbstractContextManager[object] | None = None,
        thread: WorkerThread[Callable[[], None]] | None = None,
    ) -> None:
        self._chooser = chooser
        self._say = say
        self._controller: SplitController | None = None
        self._is_hot = False  # a processor, so the controller moves nothing
        self._requested: Request | None = None
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
            return FilledIn(fill_in(requested, chosen.split_point, chosen.batch_size), request, self._controller)
        return self._chooser.choose(requested, goal, may_measure=may_measure)

    def adopt(self, filled: FilledIn) -> None:
        """Puts filled-in settings in force, and tells the user their note. The caller holds ``lock``."""
        self._settings, self._controller, self._requested = filled.settings, filled.controller, filled.request
        if filled.note:
            self._say(filled.note)

    @property
    def settings(self) -> StageSettings:
        """The filled-in settings in force."""
        return self._settings

    @property
    def open_request(self) -> Request | None:
        """What was requested, if the split point is ``auto``; otherwise None."""
        requested = self._requested
        return requested if requested is not None and requested[0] == AUTO else None

    def profiled_sizes(self, request: Request) -> list[int]:
        """Returns the batch sizes at which the profile for a request is needed."""
        return self._chooser.profiled_sizes(request)

    def replan(self, find_profile: FindProfile, request: Request, hot: Processor | None = None) -> list[SplitChoice]:
        """Uses another profile from now on. Returns the choices that turns on live frames should compare.

        The split point stays. Nothing is returned if the request is not in force any more.

        Args:
            find_profile: finds the profile of the model that serves now. Nothing is measured.
            request: the ``open_request`` for which the profile was measured.
            hot: the processor that is too hot; None: there is none. See ``hold``.

        Raises:
            ConfigurationError: there is no profile.
        """
        with self._lock:
            if request != self._requested:
                return []
            self._controller, choices = self._chooser.replan(find_profile, request, hot)
            return choices

    def hold(self, is_hot: bool) -> None:
        """Lets the split point stay where it is while a processor is too hot.

        If it followed the stages' times, that could undo what spares the processor.
        """
        self._is_hot = is_hot

    def settle(self, winner: SplitChoice | None, request: Request) -> None:
        """Takes what turns on live frames have found for the best choice, until the stages drift.

        If the request is not in force any more, puts the settings that are in force in place of the winner.

        Args:
            winner: the choice of the plan in force, which has won; None: the choice from before stays.
            request: the ``open_request`` for which it was found.
        """
        with self._lock:
            if request != self._requested:
                self._configure(self._settings)
                return
            if self._controller is None:
                return
            if winner is not None:
                after = replace(self._settings, split_point=winner.split_point, batch_size=winner.batch_size)
                self._configure(after)
                self._settings = after
            self._controller.settle()

    def observe(self, batch: Batch) -> None:
        """Notes the times of a finished batch, whose timeline is complete. Never waits.

        A batch that was executed together with other models' batches is ignored, because its times are not its model's
        alone. A batch of a contest is ignored, too. Lanes compute batches side by side, so a batch's time in the
        backbone is divided by the number of lanes.
        """
        if self._controller is None or batch.fusion is not FusionKind.NONE or batch.is_contested:
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
            if self._controller is None or self._is_hot or (settings.split_point, settings.batch_size) != point:
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
