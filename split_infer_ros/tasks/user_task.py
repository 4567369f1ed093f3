"""A task in a user's own Python, which runs in a process of its own and is ended when it hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from split_infer_ros.errors import ConfigurationError, SplitInferError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections
from split_infer_ros.models.plausibility import drop_impossible
from split_infer_ros.models.takes import Takes
from split_infer_ros.models.user_names import check_user_code
from split_infer_ros.runtime.child_process import ChildError
from split_infer_ros.tasks.task_child import Rows, TaskChild, TaskError, TaskLostError

FIRST_RUN_S = 10.0  # a first run may load files; no frame waits for it
# A run that takes longer is ended: ten times the slowest one so far, but at least MIN_LIMIT_S, and at most
# MAX_EXTRA_S more than that one. Meanwhile, the frames of other tenants wait.
MIN_LIMIT_S, LIMIT_RATIO, MAX_EXTRA_S = 1.0, 10.0, 2.0
RETRY_S = 5.0  # between two attempts to start again
EXAMPLE_POINTS = 20_000


class UserTask:
    """Runs ``module:factory`` of a user in another process. Its ``run(batch)`` gets frames as read-only arrays.

    An image is uint8 (h, w, 3) in RGB. A point cloud is float32 (n, 3) in metres. ``run`` returns a list with the rows
    of each frame: the numbers of a box as ``Takes`` says, a score of 0..1, and the index of a label.

    If the process hangs or dies, the batch is lost, and another process starts. Until it is ready, batches are lost at
    once, so that other tenants go on.

    Args:
        name: the task's name, ``task:module:factory``.
        allow_user_code: whether the user's code may run.

    Raises:
        ConfigurationError: the code may not run, fails, or gives no task.
    """

    def __init__(self, name: str, *, allow_user_code: bool) -> None:
        check_user_code(name, allow_user_code=allow_user_code)
        self.name = name
        self._lock = threading.Lock()  # the process takes one batch at a time
        self._trouble, self._retry_at, self._is_closed = "", 0.0, False
        self._next: tuple[TaskChild, threading.Thread] | None = None  # the process that starts, and who starts it
        self._child = TaskChild(name)
        try:
            self._facts = self._child.start()
            self._slowest_s = self._try_out(self._child)
        except (ChildError, SplitInferError) as error:
            self.close()
            raise ConfigurationError(f"model '{name}' cannot be made ({str(error).rstrip('.')}).") from error

    @property
    def takes(self) -> Takes:
        """What the task's frames hold."""
        return self._facts.takes

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes of objects."""
        return self._facts.labels

    @property
    def identity(self) -> str:
        """The task's name, with a digest of the file of its module."""
        return f"{self.name} {self._facts.source}"

    def example(self) -> Any:
        """Returns a black image, or points that are spread over a field of 40 x 40 m."""
        if self.takes is Takes.IMAGES:
            return Pixels.blank()
        drawn = np.random.default_rng(0).uniform((-20, -20, 0), (20, 20, 2), (EXAMPLE_POINTS, 3))
        return drawn.astype(np.float32)

    def check(self, payload: Any) -> None:
        """Does nothing: only the user's code could tell."""

    def run(self, batch: Sequence[Any]) -> Sequence[Detections]:
        """Returns the objects of each frame; see the class.

        Raises:
            TaskError: the user's code raised, or returned no objects.
            TaskLostError: the process hung or died, or another one still starts.
        """
        with self._lock:
            if self._trouble or self._is_closed:
                self._start_again()
                raise TaskLostError(self._trouble or f"{self.name} is closed.")
            start = time.monotonic()
            try:
                rows = self._child.run(batch, self._limit_s)
            except TaskLostError as error:
                self._trouble = str(error)
                self._start_again()
                raise
            self._slowest_s = max(self._slowest_s, time.monotonic() - start)
        return [self._objects(each) for each in rows]

    def close(self) -> None:
        """Ends the process. A batch that is under way fails."""
        self._is_closed = True
        self._child.kill()
        with self._lock:
            starting = self._next
        if starting is not None:
            starting[0].kill()
            starting[1].join()
        with self._lock:
            self._child.close()

    @property
    def _limit_s(self) -> float:
        slowest_s = self._slowest_s
        return max(MIN_LIMIT_S, min(LIMIT_RATIO * slowest_s, slowest_s + MAX_EXTRA_S))

    def _try_out(self, child: TaskChild) -> float:
        """Runs a process on the example, twice. Returns the seconds of the second run: the first one may load files."""
        for _ in range(2):
            start = time.monotonic()
            (rows,) = child.run([self.example()], FIRST_RUN_S)
            self._objects(rows)
        return time.monotonic() - start

    def _start_again(self) -> None:
        """Starts another process on a thread of its own, unless one starts, or did so a moment ago (lock held)."""
        if self._next is None and time.monotonic() >= self._retry_at and not self._is_closed:
            child = TaskChild(self.name)
            thread = threading.Thread(target=self._start, args=(child,), name="restart task", daemon=True)
            self._next = child, thread
            thread.start()

    def _start(self, child: TaskChild) -> None:
        """Starts a process, tries it out, and lets it take the place of the one that was lost."""
        trouble = ""
        try:
            facts = child.start()
            if facts[:2] != self._facts[:2]:
                raise TaskError("it takes other frames or has other labels than before: start the node again")
            self._try_out(child)
        except (ChildError, SplitInferError) as error:
            trouble = f"{self.name} cannot start again ({str(error).rstrip('.')})."
        with self._lock:
            old, self._child = (child, self._child) if trouble or self._is_closed else (self._child, child)
            self._next, self._trouble = None, trouble
            self._retry_at = time.monotonic() + RETRY_S if trouble else 0.0
        old.close()

    def _objects(self, rows: Rows) -> Detections:
        """Returns rows as objects.

        Raises:
            TaskError: an object is impossible, such as one with a NaN or an unknown label.
        """
        numbers = self.takes.box_numbers
        values = np.array(rows, np.float64).reshape(-1, numbers + 2)
        scores, labels = values[:, numbers].astype(np.float32), values[:, numbers + 1]
        whole = np.where(np.isfinite(labels) & (labels == np.floor(labels)), labels, -1).astype(np.int64)
        with np.errstate(over="ignore"):  # a number may be infinite in float32, which is impossible
            boxes = values[:, :numbers].astype(np.float32)
        found = Detections(boxes, scores, whole)
        _, impossible = drop_impossible([found], len(self.labels))
        if impossible:
            named = ", ".join(f"{count} x {reason}" for reason, count in impossible.items())
            raise TaskError(f"{self.name} returned impossible objects: {named}.")
        return found
