"""Takes images that a model serves, spread over time."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.improving.rivals import NoImagesError
from split_infer_ros.server.served_model import ServedModel

SPACING_S = 0.5  # between two images, so that they show different scenes
MAX_WAIT_S = 20.0  # for an image
WAIT_S = 0.2  # how often it is checked whether the wait should end


class LiveFrames:
    """Takes source images of a served model while it serves. Use it as a context manager.

    Images are neither copied nor kept: who takes one holds it as long as it is needed.

    Args:
        served: the model.
        is_over: says whether waiting for an image should end.
    """

    def __init__(self, served: ServedModel, is_over: Callable[[], bool]) -> None:
        self._served = served
        self._is_over = is_over
        self._images: SimpleQueue[Pixels] = SimpleQueue()
        self._is_wanted = False
        self._next = 0.0

    def __enter__(self) -> LiveFrames:
        self._served.observe(self._observe)
        return self

    def __exit__(self, *exception: object) -> None:
        self._served.ignore(self._observe)

    def take(self) -> Pixels | None:
        """Waits for an image that is at least ``SPACING_S`` newer than the last one; None if the wait should end.

        Raises:
            NoImagesError: no image has come for ``MAX_WAIT_S``, and other models and nodes wait for the end of this
                search.
        """
        end = time.monotonic() + MAX_WAIT_S
        while not self._is_over():
            if time.monotonic() > end:
                raise NoImagesError
            self._is_wanted = time.monotonic() >= self._next and self._images.empty()
            try:
                image = self._images.get(timeout=WAIT_S)
            except Empty:
                continue
            self._next = time.monotonic() + SPACING_S
            return image
        return None

    def _observe(self, batch: Batch) -> None:
        """Takes the first image of a batch if one is wanted (lock held)."""
        payload = batch.frames[0].payload
        if self._is_wanted and isinstance(payload, Pixels):
            self._is_wanted = False
            self._images.put(payload)
