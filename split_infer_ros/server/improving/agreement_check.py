"""Judges on live frames whether the detections of another precision agree with those of fp32."""

from __future__ import annotations

from collections.abc import Callable

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.agreement import Agreement
from split_infer_ros.server.improving.scenes import JudgedScenes, brightness
from split_infer_ros.server.improving.two_precisions import TwoPrecisions
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.result_agreement import is_classifier

LOOKS = (64, 128, 300)  # frames with objects after which it is judged, if it is not clear before
MAX_IMAGES = 160  # in one ``run``; a camera that shows no objects must not keep other models waiting


class AgreementCheck:
    """Compares a model of another precision with the model in fp32, until the result is clear.

    The lower bound of the agreement must reach ``min_agreement``. ``run`` may be called again, and then goes on.

    Args:
        reference: the model in fp32.
        other: the model of another precision.
        min_agreement: how much the detections must agree, 0..1.

    Attributes:
        reference, other, min_agreement: the arguments.
        scenes: what the judged images were like.
        agreement: the agreement so far.
        has_passed: whether ``run`` found that the detections agree.
    """

    def __init__(self, reference: SplitModel, other: SplitModel, min_agreement: float) -> None:
        self.reference, self.other, self.min_agreement = reference, other, min_agreement
        self.scenes = JudgedScenes()
        self.agreement = Agreement(classifies=is_classifier(reference))
        self.has_passed = False

    def run(self, take_image: Callable[[], Pixels | None], split_point: str) -> bool | None:
        """Judges images until the result is clear.

        Args:
            take_image: returns the next image of the camera; None if the check should end early.
            split_point: where the model is split.

        Returns:
            Whether the detections agree; None if that is not known yet.
        """
        computed = TwoPrecisions(self.reference, self.other, split_point)
        for _ in range(MAX_IMAGES):
            image = take_image()
            if image is None:
                return None
            score = computed.add_to(self.agreement, image)
            if score is None:
                continue
            self.scenes.learn(brightness(image), score)
            verdict = self._verdict() if len(self.agreement) in LOOKS else None
            if verdict is not None:
                return verdict
        return None

    def __str__(self) -> str:
        value, bounds = self.agreement.value, self.agreement.bounds()
        if value is None or bounds is None:
            return "no frame showed an object"
        return f"{self.agreement.measure} {value:.3f}, at least {bounds[0]:.3f}, over {len(self.agreement)} frames"

    def _verdict(self) -> bool | None:
        """Returns whether the detections agree; None if more frames are needed. Comparing all frames takes a while."""
        value, bounds = self.agreement.value, self.agreement.bounds()
        if value is None or bounds is None:
            return None
        if bounds[0] >= self.min_agreement:
            self.has_passed = True
            return True
        is_last = len(self.agreement) == LOOKS[-1]
        return False if is_last or value < self.min_agreement else None
