"""Decides which frames are computed in both precisions after a swap, and when the swap is undone. It has no clock."""

from __future__ import annotations

from split_infer_ros.models.agreement import Agreement
from split_infer_ros.server.improving.scenes import JudgedScenes

SELDOM, OFTEN = 100, 5  # one frame in so many is judged: in scenes that were judged before, and in others
MIN_FRAMES = 32  # so many judged frames with objects are needed for a verdict
MAX_FRAMES = 64  # the latest ones decide
MAX_OFTEN = 200  # after so many images, with objects or not, ``OFTEN`` ends
CHECK_EVERY = 4  # frames with objects, because comparing all of them takes a while


class AgreementWatch:
    """Watches over the agreement of a precision that has replaced fp32.

    One frame in a hundred is judged. Images may become brighter or darker than those that were judged before, or their
    objects may get other scores. Then one frame in five is judged, and only these frames count. If the agreement falls
    below ``min_agreement``, the swap should be undone.

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
        self._seen: list[tuple[float, float | None]] = []  # brightness and score of images in unsure times
        self._latest = 0
        self.agreement = self._no_frames()

    def wants(self, frame: int, brightness: float) -> bool:
        """Notes a frame, and returns whether it should be judged.

        Args:
            frame: the number of the frame. Not all numbers need come.
            brightness: how bright its image is, 0..255.
        """
        if self._scenes.are_left_by_brightness(brightness):
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
        if self._scenes.are_left_by_score(score):
            self._doubt()
        frames = len(self.agreement)
        is_due = score is not None and frames >= MIN_FRAMES and (frames == MAX_FRAMES or frames % CHECK_EVERY == 0)
        value = self.agreement.value if is_due else None
        if value is not None and value < self._min_agreement:
            return (
                f"its {self.agreement.measure} with fp32's detections as the truth is {value:.3f} in the last {frames} "
                f"judged frames, and {self._min_agreement:g} is needed"
            )
        if self.is_unsure:
            self._seen.append((brightness, score))
            if frames >= MIN_FRAMES or len(self._seen) >= MAX_OFTEN:
                self._trust()
        return ""

    def _doubt(self) -> None:
        """From now on, judges more frames, and only these count."""
        if not self.is_unsure:
            self.is_unsure, self._seen, self.agreement = True, [], self._no_frames()

    def _trust(self) -> None:
        """Notes that the latest scenes were judged, too."""
        self.is_unsure = False
        for brightness, score in self._seen:
            self._scenes.learn(brightness, score)

    def _no_frames(self) -> Agreement:
        return Agreement(classifies=self._classifies, max_frames=MAX_FRAMES)
