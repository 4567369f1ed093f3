"""The search for a faster way to run one served model, and when it may go on."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from split_infer_ros.server.batch import Batch
from split_infer_ros.server.improving.agreement_check import AgreementCheck
from split_infer_ros.server.improving.rivals import Rivals
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
