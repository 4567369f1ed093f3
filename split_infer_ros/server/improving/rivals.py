"""How a model may run instead: on another engine, or with another split point or batch size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.server.improving.measures import BackboneMeasure, Measure
from split_infer_ros.server.improving.turns import Verdict
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.heat import Processor

_BACKBONE = BackboneMeasure()


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Rival:
    """How a served model may run instead: on another engine, in another precision, or with other settings.

    Attributes:
        name: what is other, for the user: the engine and precision, or the split point and the batch size.
        model: the model; the served one itself if only the settings are other.
        settings: the settings of the rival's plan; None: those of the plan in force.
        measure: says who is better in a pair of turns.
        is_wanted: says whether the user still leaves open what the rival would change. If not, the contest ends.
        min_agreement: how much its detections must agree with those in fp32, 0..1; see ``AgreementCheck``. None if they
            need not be judged, because they differ by rounding in the same precision alone.
    """

    name: str
    model: SplitModel
    settings: StageSettings | None = None
    measure: Measure = _BACKBONE
    is_wanted: Callable[[], bool] = _always
    min_agreement: float | None = None


class NoImagesError(Exception):
    """The cameras of a model have sent no image for a while. The search goes on later."""


TakeImage = Callable[[], Pixels | None]


class Rivals(Protocol):
    """Proposes the rivals of one model, one after the other."""

    @property
    def summary(self) -> str:
        """What was tried, what it gained, what is left and what it cost, in words; empty if there was nothing to try.

        Any thread may read it.
        """
        ...

    def next(
        self, model: SplitModel, split_point: str, is_over: Callable[[], bool], take_image: TakeImage
    ) -> Rival | None:
        """Returns the next rival of a model that serves frames; None if nothing is left to try.

        The call may take minutes, because rivals are first tried in a process of their own.

        Args:
            model: the model that serves.
            split_point: where it is split.
            is_over: says whether the call should return None soon.
            take_image: returns the next image of the model's cameras, some time after the last one; None if the search
                is over. It may raise NoImagesError, which the call passes on.
        """
        ...

    def settle(self, verdict: Verdict) -> None:
        """Records what turns on live frames have shown about the latest rival."""
        ...

    def refuse(self, reason: str) -> None:
        """Notes that the latest rival cannot serve. ``reason`` is a sentence."""
        ...

    def again(self, hot: Processor | None) -> None:
        """Begins anew, because a processor has become too hot, or has cooled. No call of ``next`` may be under way.

        While one is hot, only ways to run are proposed that need no trial, because trials heat the machine further.
        Each is measured by a ``CoolMeasure``.

        Args:
            hot: the processor whose time should be saved; None: none is too hot.
        """
        ...

    def interrupt(self) -> None:
        """Ends a trial of ``next`` that is under way, from any thread."""
        ...

    def close(self) -> None:
        """Frees what trials needed. ``next`` may be called again later."""
        ...
