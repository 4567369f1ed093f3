"""A task in a user's own Python, which runs in a process of its own and is ended when it hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from split_infer_ros.buffers.host_arrays import Array
from split_infer_ros.errors import ConfigurationError, SplitInferError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections
from split_infer_ros.models.plausibility import drop_impossible
from split_infer_ros.models.takes import Takes
from split_infer_ros.models.user_names import TASK_PREFIX
from split_infer_ros.runtime.child_process import ChildError, ChildProcess
from split_infer_ros.runtime.python_child import python_command
from split_infer_ros.tasks.frame_file import FrameFile

MODULE = "split_infer_ros.tasks.user_task_process"
MAX_START_S = 30.0  # for the imports of the user's module
FIRST_RUN_S = 10.0  # a first run may load files
MIN_LIMIT_S, LIMIT_RATIO = 1.0, 10.0  # a later run may take ten times as long as the slowest one so far
RETRY_S = 5.0  # between two attempts to start again
EXAMPLE_POINTS = 20_000


class TaskError(SplitInferError):
    """A task failed on a batch, hung, or returned no objects."""


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
        if not allow_user_code:
            raise ConfigurationError(
                f"model '{name}' is loaded by running its code; set allow_user_code to true if you trust it."
            )
        self.name = self.identity = name
        self._lock = threading.Lock()  # the process takes one batch at a time
        self._slowest_s, self._trouble, self._retry_at, self._is_closed = 0.0, "", 0.0, False
        self._frames, self._process = self._prepared()
        try:
            self._process.start()
            facts = self._process.ask({}, FIRST_RUN_S)
        except ChildError as error:
            self.close()
            raise ConfigurationError(f"model '{name}' cannot be made ({error}).") from error
        self._frames.hide()
        self.takes, self.labels = Takes(facts["takes"]), tuple(facts["labels"])

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
            TaskError: the user's code raised, hung, died or returned no objects, or its process still starts.
        """
        with self._lock:
            if self._trouble:
                self._start_again()
                raise TaskError(self._trouble)
            facts = self._frames.write([_array_of(payload) for payload in batch])
            start = time.monotonic()
            limit_s = max(MIN_LIMIT_S, LIMIT_RATIO * self._slowest_s) if self._slowest_s else FIRST_RUN_S
            answer = self._process.ask({"frames": facts}, limit_s)
            if "late" in answer or "died" in answer:
                how = (
                    f"died ({answer['died']})" if "died" in answer else f"took longer than {limit_s:g} s and was ended"
                )
                self._trouble = f"{self.name} {how}. It starts again."
                self._start_again()
                raise TaskError(self._trouble)
            self._slowest_s = max(self._slowest_s, time.monotonic() - start)
        if "error" in answer:
            raise TaskError(f"{self.name} failed: {answer['error']}.")
        return [self._objects(rows) for rows in answer["rows"]]

    def close(self) -> None:
        """Ends the process."""
        self._is_closed = True
        self._process.kill()  # a batch that is under way fails
        with self._lock:
            self._process.end()
            self._frames.close()

    def _prepared(self) -> tuple[FrameFile, ChildProcess]:
        """Returns the memory for frames, and the process that reads it, which does not run yet."""
        frames = FrameFile.create()
        arguments = [frames.path, self.name.removeprefix(TASK_PREFIX)]
        return frames, ChildProcess(python_command(MODULE), arguments, max_start_s=MAX_START_S)

    def _start_again(self) -> None:
        """Starts another process on a thread of its own, unless one starts, or did so a moment ago (lock held)."""
        now = time.monotonic()
        if now >= self._retry_at and not self._is_closed:
            self._retry_at = now + MAX_START_S + RETRY_S
            threading.Thread(target=self._start, name="restart task", daemon=True).start()

    def _start(self) -> None:
        frames, process = self._prepared()
        trouble = ""
        try:
            process.start()
            process.wait_until_ready()
        except ChildError as error:
            trouble = f"{self.name} cannot start again ({error})."
        frames.hide()
        with self._lock:
            self._frames.close()
            self._frames, self._process = frames, process
            self._trouble, self._retry_at, self._slowest_s = trouble, time.monotonic() + RETRY_S, 0.0
            if self._is_closed:
                process.end()

    def _objects(self, rows: list[list[float]]) -> Detections:
        """Returns rows as objects.

        Raises:
            TaskError: an object is impossible, such as one with a NaN or an unknown label.
        """
        numbers = self.takes.box_numbers
        values = np.array(rows, np.float64).reshape(-1, numbers + 2)
        scores, labels = values[:, numbers].astype(np.float32), values[:, numbers + 1]
        whole = np.where(np.isfinite(labels) & (labels == np.floor(labels)), labels, -1).astype(np.int64)
        found = Detections(values[:, :numbers].astype(np.float32), scores, whole)
        _, impossible = drop_impossible([found], len(self.labels))
        if impossible:
            named = ", ".join(f"{count} x {reason}" for reason, count in impossible.items())
            raise TaskError(f"{self.name} returned impossible objects: {named}.")
        return found


def _array_of(payload: Any) -> Array:
    """Returns a payload as the array that the user's code gets."""
    if isinstance(payload, Pixels):
        return payload.data[..., list(payload.rgb)]
    points: Array = payload
    return points
