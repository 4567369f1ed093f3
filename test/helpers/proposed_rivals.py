"""Proposes models that a test gives as rivals of a served model."""

from __future__ import annotations

from collections.abc import Callable

from split_infer_ros.server.improving.rivals import Rival
from split_infer_ros.server.improving.turns import Verdict
from split_infer_ros.split.model import SplitModel


class Proposed:
    """Proposes models that a test gives. It is a ``Rivals``.

    Attributes:
        verdicts, refusals: what came of them.
        asked: how often a rival was asked for.
        closed: how often it was told to free what trials needed.
        is_done: whether no further rival was left to propose.
    """

    summary = "tried"

    def __init__(self, *models: SplitModel) -> None:
        self.verdicts: list[Verdict] = []
        self.refusals: list[str] = []
        self.asked = self.closed = 0
        self.is_done = False
        self._left = list(models)

    def next(self, model: SplitModel, split_point: str, is_over: Callable[[], bool]) -> Rival | None:
        self.asked += 1
        if not self._left:
            self.is_done = True
            return None
        return Rival("rival", self._left[0])

    def settle(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        del self._left[0]

    def refuse(self, reason: str) -> None:
        self.refusals.append(reason)
        del self._left[0]

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        self.closed += 1
