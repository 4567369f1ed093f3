"""What a model may run on instead of its present engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from split_infer_ros.server.improving.turns import Verdict
from split_infer_ros.split.model import SplitModel


@dataclass(frozen=True, slots=True)
class Rival:
    """A model that may replace a served model: the same network on another engine.

    Attributes:
        name: the engine's name, for the user.
        model: the model. Its features have the dtypes of the served model's features.
    """

    name: str
    model: SplitModel


class Rivals(Protocol):
    """Proposes the rivals of one model, one after the other."""

    @property
    def summary(self) -> str:
        """What was tried, what it gained, what is left and what it cost, in words; empty if there was nothing to try.

        Any thread may read it.
        """
        ...

    def next(self, model: SplitModel, split_point: str, is_over: Callable[[], bool]) -> Rival | None:
        """Returns the next rival of a model that serves frames; None if nothing is left to try.

        The call may take minutes, because rivals are first tried in a process of their own.

        Args:
            model: the model that serves.
            split_point: where it is split.
            is_over: says whether the call should return None soon.
        """
        ...

    def settle(self, verdict: Verdict) -> None:
        """Records what turns on live frames have shown about the latest rival."""
        ...

    def refuse(self, reason: str) -> None:
        """Notes that the latest rival cannot serve. ``reason`` is a sentence."""
        ...

    def interrupt(self) -> None:
        """Ends a trial of ``next`` that is under way, from any thread."""
        ...

    def close(self) -> None:
        """Frees what trials needed. ``next`` may be called again later."""
        ...
