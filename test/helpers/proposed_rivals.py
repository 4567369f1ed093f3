"""Proposes rivals that a test gives, and sends frames meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable

from brightness_models import LONG_S
from two_stages import Stages

from split_infer_ros.server.improving import turns
from split_infer_ros.server.improving.measures import BatchSample
from split_infer_ros.server.improving.rivals import Rival, TakeImage
from split_infer_ros.server.improving.turns import Verdict
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.heat import Processor


class Proposed:
    """Proposes models or rivals that a test gives. It is a ``Rivals``.

    Args:
        rivals: the models or rivals.
        min_agreement: how much their detections must agree with those in fp32; None: they are not judged.

    Attributes:
        verdicts, refusals: what came of them.
        asked: how often a rival was asked for.
        closed: how often it was told to free what trials needed.
        is_done: whether no further rival was left to propose.
        hot: the hot processors of which it was told, and None for each time that one had cooled.
    """

    summary = "tried"

    def __init__(self, *rivals: SplitModel | Rival, min_agreement: float | None = None) -> None:
        self.verdicts: list[Verdict] = []
        self.refusals: list[str] = []
        self.asked = self.closed = 0
        self.is_done = False
        self.hot: list[Processor | None] = []
        self._left = [
            each if isinstance(each, Rival) else Rival("rival", each, min_agreement=min_agreement) for each in rivals
        ]

    def next(
        self, model: SplitModel, split_point: str, is_over: Callable[[], bool], take_image: TakeImage
    ) -> Rival | None:
        self.asked += 1
        if not self._left:
            self.is_done = True
            return None
        return self._left[0]

    def settle(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        del self._left[0]

    def refuse(self, reason: str) -> None:
        self.refusals.append(reason)
        del self._left[0]

    def again(self, hot: Processor | None) -> None:
        self.hot.append(hot)

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


class Camera:
    """Sends frames one by one, until it is closed."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        self._thread.join(LONG_S)

    def finish(self) -> None:
        """Sends no further frame. Checks that each frame has its own result."""
        self.close()
        self._stages.settle()
        self._stages.check_results()

    def _run(self) -> None:
        value = 0
        while not self._ends.is_set():
            if self._stages.backbone.is_open and self._stages.backbone.intake.wait_for_room(0.1):
                self._stages.send(value % 256)
                value += 1


class RivalsTurn(turns.Turns):
    """The first turn is the rival's, and never ends."""

    rival_runs = True

    def note(self, batch: BatchSample, *, of_rival: bool) -> bool:
        return False
