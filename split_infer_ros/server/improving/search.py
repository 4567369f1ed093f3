"""The search for a faster way to run one served model, and when it may go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from split_infer_ros.errors import error_sentence
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.improving.agreement_check import AgreementCheck
from split_infer_ros.server.improving.live_frames import LiveFrames
from split_infer_ros.server.improving.rivals import NoImagesError, Rival, Rivals
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.split.model import SplitModel

MIN_BATCHES = 20  # a model serves so many batches before each search for a rival
RECENT_S = 5.0  # the last one may be so many seconds old, because rivals need frames
REST_S, MAX_REST_S = 1.0, 300.0  # how long a search rests that had to end early: twice as long each time


@dataclass(slots=True, eq=False)
class Search:
    """The search for a faster way to run one model.

    Attributes:
        rivals: proposes ways to run it.
        known: what searches before this one have found, in words.
        batches: how many batches the model has served since it was added, or since a contest ended early.
        last: when the last batch was over, in seconds of the steady clock.
        not_before: when the search may go on, in seconds of the steady clock.
        checks: how far the detections of rivals in other precisions agree with those in fp32.
        reference: the model in fp32 that served last.
    """

    rivals: Rivals
    known: str = ""
    batches: int = 0
    last: float = -math.inf
    not_before: float = 0.0
    _rest_s: float = REST_S
    checks: dict[SplitModel, AgreementCheck] = field(default_factory=dict)
    reference: SplitModel | None = None

    def observe(self, batch: Batch) -> None:
        """Counts a batch (server's lock held)."""
        self.batches += 1
        self.last = batch.timeline.delivered

    @property
    def has_frames(self) -> bool:
        """Whether enough batches were served, the last one a short time ago, and the search does not rest."""
        now = time.monotonic()
        return self.batches >= MIN_BATCHES and now - self.last < RECENT_S and now >= self.not_before

    def go_on(self) -> None:
        """Notes that a rival was settled."""
        self._rest_s = REST_S

    def rest(self) -> None:
        """Lets the search go on later. It rests longer each time, because a camera may show no objects for hours."""
        self.batches, self.not_before = 0, time.monotonic() + self._rest_s
        self._rest_s = min(MAX_REST_S, 2 * self._rest_s)

    def hurry(self) -> None:
        """Ends a rest, because what is wanted has changed."""
        self.not_before, self._rest_s = 0.0, REST_S

    def agrees(self, served: ServedModel, rival: Rival, is_over: Callable[[], bool]) -> bool | None:
        """Returns whether a rival's detections agree with those in fp32; None if that is not known yet.

        Args:
            served: the model that serves.
            rival: how it may run instead. If its detections do not agree, it is refused.
            is_over: says whether the comparison should end early.
        """
        if rival.min_agreement is None:
            return True
        if rival.model not in self.checks:
            if self.reference is None:  # heat ended the search in which fp32 served
                self.rivals.refuse("no model in fp32 serves, with which it could be compared")
                return False
            self.checks[rival.model] = AgreementCheck(self.reference, rival.model, rival.min_agreement)
        check = self.checks[rival.model]
        if check.has_passed:
            return True
        try:
            with LiveFrames(served, is_over) as frames:
                agrees = check.run(frames.take, served.plan.split_point.name)
        except NoImagesError:
            return None
        except Exception as error:  # engines have errors of their own
            self.rivals.refuse(f"it cannot be compared with fp32: {error_sentence(error)}")
            return False
        if agrees is False:
            self.rivals.refuse(f"its detections do not agree with those in fp32: {check}")
        return agrees
