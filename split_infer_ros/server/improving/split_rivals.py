"""Proposes split points and batch sizes for a model whose split point is ``auto``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server.auto_split import AutoSplit
from split_infer_ros.server.improving.improve import Improve
from split_infer_ros.server.improving.measures import CoolMeasure, GoalMeasure
from split_infer_ros.server.improving.rivals import Rival, Rivals, TakeImage
from split_infer_ros.server.improving.rivals_in_turn import RivalsInTurn
from split_infer_ros.server.improving.turns import Verdict
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.split_chooser import Request
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.planner import SplitChoice
from split_infer_ros.split.profile import FindProfile
from split_infer_ros.telemetry.heat import Processor

MAX_TRIES = 10  # a contest that others ended is repeated, but not for ever


class BackgroundProfiles(Protocol):
    """Measures profiles beside a model that serves."""

    def find(self, model: SplitModel, batch_sizes: Sequence[int], is_over: Callable[[], bool]) -> FindProfile:
        """Measures what the database lacks, and returns a function that finds the profile there.

        Args:
            model: the model that serves.
            batch_sizes: the batch sizes that the profile needs.
            is_over: says whether the call should return soon.

        Raises:
            ConfigurationError: the model cannot be measured.
        """
        ...

    def cost(self) -> str:
        """Returns in words what measurements since the last call have taken; empty if there were none."""
        ...

    def interrupt(self) -> None:
        """Ends a measurement that is under way, from any thread."""
        ...

    def close(self) -> None:
        """Frees what measurements needed. ``find`` may be called again later."""
        ...


class SplitRivals:
    """Proposes the choices of the shortlist while the split point is ``auto``. It is a ``Rivals``.

    The profile is measured first, as far as the database lacks it. A new request, or another engine of the model, leads
    to a new shortlist.

    Args:
        split: holds what was requested, and takes what turns on live frames have found.
        profiles: measures the profile.
    """

    def __init__(self, split: AutoSplit, profiles: BackgroundProfiles) -> None:
        self._split = split
        self._profiles = profiles
        self._planned_for: tuple[SplitModel, Request] | None = None
        self._left: list[SplitChoice] = []  # the first one is the next one, or the one that was proposed last
        self._tries = 0
        self._hot: Processor | None = None
        self._found: list[str] = []

    @property
    def summary(self) -> str:
        """What was tried, and what it gained, in words; empty if the split point was not ``auto``."""
        return "; ".join(self._found)

    def next(
        self, model: SplitModel, split_point: str, is_over: Callable[[], bool], take_image: TakeImage
    ) -> Rival | None:
        """Returns the next choice that differs from the present one; see ``Rivals.next``."""
        while (request := self._split.open_request) is not None and self._planned_for != (model, request):
            if not self._plan(model, request, is_over):
                return None
        if request is None:
            return None
        while self._left:
            choice, present = self._left[0], self._split.settings
            settings = replace(present, split_point=choice.split_point, batch_size=choice.batch_size)
            self._tries += 1
            if settings != present and self._tries <= MAX_TRIES:
                return self._rival(model, settings, choice, request)
            self._pass_on("" if settings == present else f"{name_of(choice)} could not be compared")
        return None

    def settle(self, verdict: Verdict) -> None:
        """Puts the latest choice in force for good if it has won, or else the one before."""
        choice = self._left[0]
        self._settle(choice if verdict.rival_wins else None)
        self._pass_on(f"{name_of(choice)} is {verdict} on live frames")

    def refuse(self, reason: str) -> None:
        """Notes that the model cannot run with the latest choice."""
        self._settle(None)
        self._pass_on(f"{name_of(self._left[0])} is not used ({reason.rstrip('.')})")

    def interrupt(self) -> None:
        """Ends a measurement that is under way, from any thread."""
        self._profiles.interrupt()

    def again(self, hot: Processor | None) -> None:
        """Makes another shortlist, because a processor has become too hot, or has cooled."""
        self._hot, self._planned_for = hot, None
        self._split.hold(hot is not None)
        self._found.clear()  # otherwise the summary would grow with each hot day

    def close(self) -> None:
        """Ends the process that measures, if there is one."""
        self._profiles.close()

    def _plan(self, model: SplitModel, request: Request, is_over: Callable[[], bool]) -> bool:
        """Makes the shortlist. Returns False if the search is over, or the model cannot be measured."""
        self._planned_for, self._left, self._tries = None, [], 0
        sizes = self._split.profiled_sizes(request) if self._hot is None else ()  # measuring would heat it further
        try:
            find_profile = self._profiles.find(model, sizes, is_over)
            if is_over():
                return False
            self._found += filter(None, [self._profiles.cost()])
            self._left = self._split.replan(find_profile, request, self._hot)
        except ConfigurationError as error:
            if not is_over():
                self._planned_for = model, request
                self._found.append(f"split points are not compared ({str(error).rstrip('.')})")
            return False
        self._planned_for = model, request
        return True

    def _rival(self, model: SplitModel, settings: StageSettings, choice: SplitChoice, request: Request) -> Rival:
        goal = GoalMeasure(request[2])
        return Rival(
            name_of(choice),
            model,
            settings=settings,
            measure=goal if self._hot is None else CoolMeasure(self._hot, request[2].latency_bound_s),
            is_wanted=lambda: self._split.open_request == request,
        )

    def _settle(self, winner: SplitChoice | None) -> None:
        if self._planned_for is not None:
            self._split.settle(winner, self._planned_for[1])

    def _pass_on(self, found: str) -> None:
        del self._left[0]
        self._tries = 0
        if found:
            self._found.append(found)


def with_split_rivals(rivals: Rivals | None, split: AutoSplit, profiles: BackgroundProfiles | None) -> Rivals | None:
    """Returns the rivals of a model, followed by its split points and batch sizes if profiles may be measured.

    Args:
        rivals: the rivals that come first; None: there are none.
        split: the ``AutoSplit`` of the model.
        profiles: measures profiles; None: no split points are compared while frames flow.
    """
    if profiles is None:
        return rivals
    return RivalsInTurn([*([] if rivals is None else [rivals]), SplitRivals(split, profiles)])


def name_of(choice: SplitChoice) -> str:
    """Returns the name of a choice, for the user."""
    return f"split point {choice.split_point} with batch size {choice.batch_size}"


def improve_with(profiles: BackgroundProfiles | None, wanted: Improve) -> Improve:
    """Returns when profiles are measured: before the start if nobody can measure them while frames flow."""
    return Improve.BEFORE_START if profiles is None and wanted is Improve.BACKGROUND else wanted
