"""Notices when images, or what is found in them, become unlike those that were judged."""

from __future__ import annotations

import math
import statistics
from collections import deque

from split_infer_ros.images.encodings import Pixels

RECENT = 5  # the median of so many values decides, so that a single image does not
MARGIN = 0.1  # by this part of its width, a range is widened on both sides
MIN_BRIGHTNESS_MARGIN, MIN_SCORE_MARGIN = 8.0, 0.05  # and by at least this much
STRIDE = 16  # of the pixels that are read for the brightness


def brightness(image: Pixels) -> float:
    """Returns the mean of an image's bytes, 0..255, from one pixel in ``STRIDE`` rows and columns."""
    return float(image.data[::STRIDE, ::STRIDE].mean())


class JudgedRange:
    """The range of a value in the images that were judged.

    Args:
        min_margin: by at least this much, the range is widened on both sides.
    """

    def __init__(self, min_margin: float) -> None:
        self._min_margin = min_margin
        self._low, self._high = math.inf, -math.inf
        self._recent: deque[float] = deque(maxlen=RECENT)

    def learn(self, value: float) -> None:
        """Widens the range, so that it includes a value."""
        self._low, self._high = min(self._low, value), max(self._high, value)

    def is_left_by(self, value: float) -> bool:
        """Notes the value of the next image. Returns whether the median of the latest values lies out of range."""
        self._recent.append(value)
        if len(self._recent) < RECENT or self._low > self._high:
            return False
        margin = max(self._min_margin, MARGIN * (self._high - self._low))
        return not self._low - margin <= statistics.median(self._recent) <= self._high + margin


class JudgedScenes:
    """What the judged images were like: how bright they were, and which scores their objects had."""

    def __init__(self) -> None:
        self._brightness, self._score = JudgedRange(MIN_BRIGHTNESS_MARGIN), JudgedRange(MIN_SCORE_MARGIN)

    def learn(self, brightness: float, score: float) -> None:
        """Notes that an image with objects was judged.

        Args:
            brightness: how bright it is, 0..255.
            score: the mean score of its objects, 0..1.
        """
        self._brightness.learn(brightness)
        self._score.learn(score)

    def are_left_by_brightness(self, brightness: float) -> bool:
        """Notes how bright the next image is. Returns whether recent images are brighter or darker than judged ones."""
        return self._brightness.is_left_by(brightness)

    def are_left_by_score(self, score: float | None) -> bool:
        """Notes the mean score of the next image. Returns whether recent scores are unlike those of judged images."""
        return score is not None and self._score.is_left_by(score)
