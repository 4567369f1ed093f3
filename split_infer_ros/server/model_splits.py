"""Makes the objects that choose and move the split points of a server's models."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from split_infer_ros.server.auto_split import AutoSplit, controller_thread
from split_infer_ros.server.improving.improve import Improve
from split_infer_ros.server.improving.split_rivals import improve_with
from split_infer_ros.server.opened_model import OpenedModel
from split_infer_ros.server.split_chooser import DWELL_S, SplitChooser

MORE_SIZES = (1,)  # profiled beside the largest batch, because few batches of tenants are full


class ModelSplits:
    """Makes an ``AutoSplit`` for each model. One thread moves all split points, one after the other.

    Args:
        changing: the lock that is held while a split point changes.
        say: called with a model's key and a sentence about its split point.
    """

    def __init__(self, changing: threading.RLock, say: Callable[[str, str], object]) -> None:
        self._changing = changing
        self._say = say
        self._thread = controller_thread()

    def open(self, key: str, opened: OpenedModel, improve: Improve) -> AutoSplit:
        """Returns the object that chooses and moves the split point of a model.

        Args:
            key: the model's key.
            opened: the model.
            improve: when the model is measured if it has no profile.
        """
        model = opened.model
        chooser = SplitChooser(
            model.device.type,
            opened.find_profile,
            DWELL_S,
            default=model.split_point(opened.split_point).name,
            has_choice=len(model.split_points) > 1,
            more_sizes=MORE_SIZES,
            improve=improve_with(opened.profiles, improve),
        )
        return AutoSplit(chooser, partial(self._say, key), lock=self._changing, thread=self._thread)

    def start(self) -> None:
        """Starts the thread that moves split points. May be called again after ``stop``."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread that moves split points.

        The caller must not hold ``changing``, because a move may wait for that lock.
        """
        self._thread.stop()
