"""Decides which frames are computed in both precisions after a swap, and when the swap is undone. It has no clock."""

from __future__ import annotations

from split_infer_ros.models.agreement import Agreement
from split_infer_ros.server.improving.scenes import JudgedScenes

SELDOM, OFTEN = 100, 5  # one frame in so many is judged: in scenes that were judged before, and in others
LOOKS = (32, 64)  # judged frames with objects after which the agreement is looked at; then new frames count
MAX_OFTEN = 200  # after so many images in a new scene, with objects or not, ``OFTEN`` ends
ERROR = 0.005  # of the upper bound, because it is looked at again and again
REST = 2000  # frames without ``OFTEN`` after a new scene that showed too few objects


class AgreementWatch:
    """Watches over the agreement of a precision that has replaced fp32.

    One frame in a hundred is judged. Images may become brighter or darker than those that were judged before, or their
    objects may get other scores. Then one frame in five is judged, and only these frames count. If the upper bound of
    the agreement falls below ``min_agreement``, the swap should be undone. The lower bound would undo good swaps,
    because it is looked at again and again.

    Args:
        classifies: whether the model is a classifier.
        min_agreement: how much the detections must agree, 0..1.
        scenes: what the images were like that were judged before the swap.

    Attributes:
        agreement: the agreement in the latest judged frames.
        is_unsure: whether images are unlike those that were judged.
    """

    def __init__(self, *, classifies: bool, min_agreement: float, scenes: JudgedScenes) -> None:
        self.is_unsure = False
        self._classifies, self._min_agreement, self._scenes = classifies, min_agreement, scenes
        self._seen: list[tuple[float, float]] = []  # brightness and score of images with objects in a new scene
        self._num_images = 0  # of the new scene
        self._latest = self._rests_until = 0
        self.agreement = self._no_frames()

    def wants(self, frame: int, brightness: float) -> bool:
        """Notes a frame, and returns whether it should be judged.

        Args:
            frame: the number of the frame. Not all numbers need come.
            brightness: how bright its image is, 0..255.
        """
        if self._scenes.are_left_by_brightness(brightness) and frame >= self._rests_until:
            self._doubt()
        if frame - self._latest < (OFTEN if self.is_unsure else SELDOM):
            return False
        self._latest = frame
        return True

    def note(self, brightness: float, score: float | None) -> str:
        """Notes that an image was judged, which was added to ``agreement`` if it has objects.

        Args:
            brightness: how bright the image is, 0..255.
            score: the mean score of its objects, 0..1; None if it has none.

        Returns:
            Why the swap should be undone, in words; empty if it need not be.
        """
        if self._scenes.are_left_by_score(score) and self._latest >= self._rests_until:
            self._doubt()
        frames = len(self.agreement)
        reason = self._objection() if score is not None and frames in LOOKS else ""
        if self.is_unsure:
            self._num_images += 1
            self._seen += [] if score is None else [(brightness, score)]
            if frames >= LOOKS[0]:
                self._trust()
            elif self._num_images >= MAX_OFTEN:
                self.is_unsure, self._rests_until = False, self._latest + REST
        if frames >= LOOKS[-1]:
            self.agreement = self._no_frames()
        return reason

    def _objection(self) -> str:
        bounds = self.agreement.bounds(ERROR)
        if bounds is None or bounds[1] >= self._min_agreement:
            return ""
        return (
            f"its {self.agreement.measure} with fp32's detections as the truth is {self.agreement.value:.3f}, at most "
            f"{bounds[1]:.3f}, in the last {len(self.agreement)} judged frames, and {self._min_agreement:g} is needed"
        )

    def _doubt(self) -> None:
        """From now on, judges more frames, and only these count."""
        if not self.is_unsure:
            self.is_unsure, self._seen, self._num_images, self.agreement = True, [], 0, self._no_frames()

    def _trust(self) -> None:
        """Notes that the latest scenes were judged, too."""
        self.is_unsure = False
        for brightness, score in self._seen:
            self._scenes.learn(brightness, score)

    def _no_frames(self) -> Agreement:
        return Agreement(classifies=self._classifies)
