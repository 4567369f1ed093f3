"""Sends images to a backbone stage, and waits until each of them is published or dropped."""

from __future__ import annotations

import time
from collections.abc import Iterable

from split_infer_ros.errors import SplitInferError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.server.backbone_stage import BackboneStage
from split_infer_ros.server.frame import Origin

STUCK_S = 60.0  # the longest wait for a batch


class StageFeeder:
    """Sends images to one backbone stage, from one thread.

    Attributes:
        num_fed: number of images that were sent.
        errors: the errors that cost frames, in the order in which they came.
    """

    def __init__(self) -> None:
        self.num_fed = 0
        self.errors: list[Exception] = []

    def fail(self, error: Exception) -> None:
        """Notes an error that cost frames, from any thread. ``feed`` or ``finish`` raises the first such error."""
        self.errors.append(error)

    def feed(self, stage: BackboneStage, pictures: Iterable[Pixels]) -> None:
        """Sends images as fast as the stage accepts them.

        The header of each image is its number. The numbers begin at 0 and continue over all calls.

        Raises:
            SplitInferError: the stage took no frame for 60 s.
            Exception: a batch failed; this is its error.
        """
        for picture in pictures:
            if not stage.intake.wait_for_room(STUCK_S):
                raise SplitInferError(f"The pipeline took no frame for {STUCK_S:g} s.")
            self._check()
            stage.intake.submit(picture, Origin(self.num_fed, "", picture.height, picture.width), time.monotonic())
            self.num_fed += 1

    def finish(self, stage: BackboneStage) -> None:
        """Waits until each image that ``feed`` has sent is published or dropped.

        Raises:
            SplitInferError: this takes longer than 60 s.
            Exception: a batch failed; this is its error.
        """
        end = time.monotonic() + STUCK_S
        while stage.ledger.counts().in_flight:
            self._check()
            if time.monotonic() > end:
                raise SplitInferError(f"The pipeline did not finish within {STUCK_S:g} s.")
            time.sleep(1e-3)
        self._check()

    def _check(self) -> None:
        if self.errors:
            raise self.errors[0]
