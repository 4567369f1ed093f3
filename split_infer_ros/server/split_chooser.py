"""Chooses a split point and a batch size where settings leave them open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from split_infer_ros.server.improving.improve import Improve
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.controller import SplitController
from split_infer_ros.split.planner import Goal, Objective, SplitChoice, coolest, plan, predict, shortlist
from split_infer_ros.split.profile import FindProfile, NotProfiledError, Profile, ProfilePoint
from split_infer_ros.split.split_points import OUTPUT
from split_infer_ros.telemetry.heat import Processor

AUTO = "auto"
DEFAULT = "default"
ANY_BATCH_SIZE = 0
DWELL_S = 5.0  # how long another split point must be better before ``auto`` takes it
BATCH_SIZES = {"cpu": (1, 2, 4, 8), "cuda": (1, 4, 16, 64)}  # the batch sizes to choose among, by type of device

Request = tuple[str, int, Goal]
"""The requested split point, batch size and goal."""


@dataclass(frozen=True, slots=True)
class FilledIn:
    """Settings in which ``AutoSplit`` has replaced ``auto``, ``default`` and batch size 0 by actual values.

    ``AutoSplit.adopt`` puts them in force.

    Attributes:
        settings: the complete settings.
        request: what they were filled in for.
        controller: proposes moves of the split point from the times of batches; None if the split point must not move.
        note: a sentence for the user; empty if there is nothing to say.
    """

    settings: StageSettings
    request: Request
    controller: SplitController | None = None
    note: str = ""


def fill_in(requested: StageSettings, split_point: str, batch_size: int) -> StageSettings:
    """Returns settings with a split point and a batch size.

    If the batch size was open, no frame waits for others. The frames that came while the stage was busy are a batch. So
    batches grow to the batch size while frames come fast, and a slow camera's frames are computed one by one.

    Args:
        requested: the settings as the user gave them.
        split_point: the name of the split point.
        batch_size: images a batch.
    """
    timeout_s = 0.0 if requested.batch_size == ANY_BATCH_SIZE else requested.batch_timeout_s
    return replace(requested, split_point=split_point, batch_size=batch_size, batch_timeout_s=timeout_s)


class SplitChooser:
    """Chooses the split point and batch size of one model from its profile.

    Args:
        device_type: the type of device on which the backbone runs, ``cpu`` or ``cuda``.
        find_profile: returns the profile of the model.
        dwell_s: seconds for which another split point must be better before the pipeline moves to it.
        default: the split point that ``default`` stands for.
        has_choice: whether the model has several split points. If not, ``default`` answers every request.
        more_sizes: batch sizes that are profiled but never chosen. Their times tell how long a batch should take if it
            is not full.
        improve: when a model without a profile is measured. Only ``BEFORE_START`` measures it here. Otherwise it is
            split at ``default`` for now, and ``replan`` gets the profile if there is one later.
    """

    def __init__(
        self,
        device_type: str,
        find_profile: FindProfile,
        dwell_s: float,
        *,
        default: str = DEFAULT,
        has_choice: bool = True,
        more_sizes: Sequence[int] = (),
        improve: Improve = Improve.BEFORE_START,
    ) -> None:
        self._device_type, self._batch_sizes = device_type, BATCH_SIZES[device_type]
        self._find_profile = find_profile
        self._dwell_s = dwell_s
        self._default, self._has_choice = default, has_choice
        self._more_sizes = more_sizes
        self._improve = improve

    def choose(self, requested: StageSettings, goal: Goal, *, may_measure: bool) -> FilledIn:
        """Returns the settings with open values filled in.

        Args:
            requested: the settings as the user gave them.
            goal: what split point ``auto`` optimises.
            may_measure: whether a profile that is missing may be measured, with ``Improve.BEFORE_START``.

        Raises:
            NotProfiledError: with ``Improve.BEFORE_START``, the database lacks times that may not be measured.
            ConfigurationError: the memory is too small for a batch size.
        """
        request = requested.split_point, requested.batch_size, goal
        default = fill_in(requested, self._default, requested.batch_size or 1)
        if requested.split_point == DEFAULT or not self._has_choice:
            return FilledIn(default, request)
        if requested.split_point != AUTO:
            return FilledIn(replace(default, split_point=requested.split_point), request)
        try:
            profile = self._profile(request, may_measure and self._improve is Improve.BEFORE_START)
        except NotProfiledError:
            if self._improve is Improve.BEFORE_START:
                raise
            when = "It is measured while frames flow."
            if self._improve is Improve.NEVER:
                when = "improve is never, so it is not measured; the command profile measures it."
            return FilledIn(default, request, note=f"The model is split at {self._default} for now. {when}")
        choice = plan(profile, goal.objective, goal.latency_bound_s, self._sizes(request))
        note = ""
        if not choice.within_bound:
            note = (
                f"No split point of {profile.model} keeps within {1e3 * goal.latency_bound_s:g} ms on this machine; "
                f"the one of the lowest latency is taken, {1e3 * choice.latency_s:.1f} ms."
            )
        settings = fill_in(requested, choice.split_point, choice.batch_size)
        return FilledIn(settings, request, self._controller(profile, request), note)

    def profiled_sizes(self, request: Request) -> list[int]:
        """Returns the batch sizes at which the profile for a request is needed."""
        return sorted({*self._sizes(request), *self._more_sizes})

    def replan(
        self, find_profile: FindProfile, request: Request, hot: Processor | None = None
    ) -> tuple[SplitController, list[SplitChoice]]:
        """Uses another profile from now on. Nothing is measured.

        Args:
            find_profile: finds the profile.
            request: what was requested.
            hot: the processor that is too hot; None: there is none.

        Returns:
            What moves the split point by this profile, and the choices that turns on live frames should compare. These
            are the ``shortlist``, the default split point and the whole model in the backbone. The last two need no
            prediction. For ``throughput`` they have the largest batch size: predictions know nothing of lanes, and no
            frame waits for others. While a processor is hot, the choices are the ``coolest`` and the whole model in the
            backbone.

        Raises:
            ConfigurationError: there is no profile.
        """
        self._find_profile = find_profile
        profile, goal = self._profile(request, may_measure=False), request[2]
        if hot is None:
            choices = shortlist(profile, goal.objective, goal.latency_bound_s, self._sizes(request))
        else:
            choices = coolest(profile, partial(self._busy_s, hot), goal.latency_bound_s, self._sizes(request))
        size, measured = request[1] or 1, {point.batch_size for point in profile.points}
        if goal.objective is Objective.THROUGHPUT:
            size = max(measured.intersection(self._sizes(request)), default=size)
        plain = [profile.point(name, size) for name in (self._default, OUTPUT)]
        choices += [predict(profile, point, goal.latency_bound_s) for point in plain if point is not None]
        return self._controller(profile, request), list(dict.fromkeys(choices))

    def _busy_s(self, hot: Processor, point: ProfilePoint) -> float:
        """Returns how long a batch keeps a hot processor busy, in seconds. The head runs on the CPU."""
        on_cpu = self._device_type == "cpu"
        backbone_s, head_s = point.preprocess_s + point.backbone_s + point.hand_over_s, point.head_s + point.decode_s
        return backbone_s * (on_cpu or hot is Processor.GPU) + head_s * (hot is Processor.CPU)

    def _sizes(self, request: Request) -> Sequence[int]:
        """Returns the batch sizes to choose among."""
        return self._batch_sizes if request[1] == ANY_BATCH_SIZE else (request[1],)

    def _profile(self, request: Request, may_measure: bool) -> Profile:
        return self._find_profile(self.profiled_sizes(request), may_measure)

    def _controller(self, profile: Profile, request: Request) -> SplitController:
        goal, sizes = request[2], self._sizes(request)
        return SplitController(profile, goal.objective, goal.latency_bound_s, dwell_s=self._dwell_s, batch_sizes=sizes)
