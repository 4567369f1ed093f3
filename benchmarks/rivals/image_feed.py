"""Feeds a rival with images in batches, and measures from outside how fast its results come."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections

NO_CLASS = -1  # stands for the best class if a detector finds nothing in an image

Figures = dict[str, float]
Batches = Iterator[Sequence[Pixels]]


@dataclass
class ImageFeed:
    """Yields images in batches, and records the results and when they came.

    Each turn begins with the image that follows the last image of the turn before.

    Attributes:
        images: the images. After the last image, the first follows again.
        batch_size: images per batch.
        labels: the best class of each result, in order; ``NO_CLASS`` if nothing was found.
    """

    images: Sequence[Pixels]
    batch_size: int
    labels: list[int] = field(default_factory=list)
    _taken: list[float] = field(default_factory=list)
    _done: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._endless = itertools.cycle(self.images)

    def batches(self, count: int) -> Batches:
        """Yields the ``count`` batches of a turn. Forgets the times of earlier turns."""
        self._taken.clear()
        self._done.clear()
        for _ in range(count):
            self._taken.append(time.monotonic())
            yield list(itertools.islice(self._endless, self.batch_size))

    def record(self, results: Sequence[Detections]) -> None:
        """Records the results of the next images, of a batch or of a part of a batch."""
        self.labels += [int(detections.labels[0]) if len(detections) else NO_CLASS for detections in results]
        if len(self.labels) % self.batch_size == 0:
            self._done.append(time.monotonic())

    def timed_span(self, num_batches: int) -> tuple[float, float]:
        """Returns when the clock started (at the first result) and when it stopped (``num_batches`` batches later)."""
        return self._done[0], self._done[num_batches]

    def figures(self, num_batches: int) -> Figures:
        """Returns the speed of the timed batches, their median latency, and the number of all images of the turn.

        Speed is ``images_per_s``. Latency is ``latency_s``, from the moment that the rival takes a batch to its last
        result. The number is ``images``; it includes images that are not timed.
        """
        start, end = self.timed_span(num_batches)
        latencies_s = [done - taken for taken, done in zip(self._taken, self._done, strict=True)]
        return {
            "images_per_s": num_batches * self.batch_size / (end - start),
            "images": float(len(self._done) * self.batch_size),
            "latency_s": statistics.median(latencies_s[1 : num_batches + 1]),
        }

    def agreement(self, expected_labels: Sequence[int]) -> float:
        """Returns the share of results with the expected label, from 0 to 1.

        Args:
            expected_labels: the label of each image. If there are fewer labels than images, results of the other images
                are left out.
        """
        matches = []
        for index, label in enumerate(self.labels):
            image = index % len(self.images)
            if image < len(expected_labels):
                matches.append(label == expected_labels[image])
        return sum(matches) / len(matches)
