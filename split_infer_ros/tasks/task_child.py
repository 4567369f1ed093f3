"""The process of a user's task, with the memory in which it gets frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from split_infer_ros.buffers.host_arrays import Array
from split_infer_ros.errors import PassingError, SplitInferError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.takes import Takes
from split_infer_ros.models.user_names import TASK_PREFIX
from split_infer_ros.runtime.child_process import ChildError, ChildProcess
from split_infer_ros.runtime.python_child import python_command
from split_infer_ros.tasks.frame_file import FrameFile

MODULE = "split_infer_ros.tasks.user_task_process"
MAX_START_S = 30.0  # for the imports of the user's module
MB = 1e6

Rows = list[list[float]]  # of one frame: a box, a score and a label each


class TaskError(SplitInferError):
    """A task failed on a batch, or returned no objects."""


class TaskLostError(PassingError):
    """The process of a task hung or died, and another one starts."""


class TaskFacts(NamedTuple):
    """What a task says about itself.

    Attributes:
        takes: what its frames hold.
        labels: the names of the classes of objects.
        source: a digest of its module, by which stored costs are found.
    """

    takes: Takes
    labels: tuple[str, ...]
    source: str


class TaskChild:
    """One process of a task. One thread at a time may call ``start`` and ``run``.

    Args:
        name: the task's name, ``task:module:factory``.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._frames = FrameFile.create()
        arguments = [self._frames.path, name.removeprefix(TASK_PREFIX)]
        self._process = ChildProcess(python_command(MODULE), arguments, max_start_s=MAX_START_S)
        self._is_killed = False

    def start(self) -> TaskFacts:
        """Starts the process, which makes the task, and returns what the task says about itself.

        Raises:
            ChildError: the task cannot be made, or is no task.
        """
        try:
            self._process.start()
            if self._is_killed:  # before there was a process
                self._process.kill()
            answer = self._process.ask({}, MAX_START_S)
        finally:
            self._frames.hide()
        if "takes" not in answer:
            raise ChildError("it ended, or took too long, before it said what it takes")
        return TaskFacts(Takes(answer["takes"]), tuple(answer["labels"]), answer["source"])

    def run(self, batch: Sequence[Any], limit_s: float) -> list[Rows]:
        """Runs the task on a batch, and returns the rows of each frame.

        Args:
            batch: the payloads of frames.
            limit_s: how many seconds the task may take. If it takes longer, its process is ended.

        Raises:
            TaskError: the user's code raised, or returned no rows; or there is too little shared memory.
            TaskLostError: the process took too long, or died.
        """
        arrays = [_array_of(payload) for payload in batch]
        try:
            facts = self._frames.write(arrays)
        except OSError as error:
            needed_mb = sum(array.nbytes for array in arrays) / MB
            raise TaskError(
                f"{self._name} gets its frames in shared memory, which has no room for {needed_mb:.0f} MB "
                f"({error.strerror}): mount /dev/shm larger, or set a smaller batch_size."
            ) from error
        answer = self._process.ask({"frames": facts}, limit_s)
        if "late" in answer:
            raise TaskLostError(f"{self._name} took longer than {limit_s:g} s and was ended. It starts again.")
        if "died" in answer:
            raise TaskLostError(f"{self._name} died ({answer['died']}). It starts again.")
        if "error" in answer:
            raise TaskError(f"{self._name} failed: {answer['error']}.")
        rows: list[Rows] = answer["rows"]
        return rows

    def kill(self) -> None:
        """Kills the process now, or once it starts. Any thread may call this."""
        self._is_killed = True
        self._process.kill()

    def close(self) -> None:
        """Ends the process, and frees the memory."""
        self._process.end()
        self._frames.close()


def _array_of(payload: Any) -> Array:
    """Returns a payload as the array that the user's code gets."""
    if isinstance(payload, Pixels):
        return payload.data[..., list(payload.rgb)]
    points: Array = payload
    return points
