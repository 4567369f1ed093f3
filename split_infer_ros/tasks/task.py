"""What a task is. The scheduler serves tasks and networks alike (paper 003, case II)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from split_infer_ros.models.detections import Detections
from split_infer_ros.models.takes import Takes

MAX_OBJECTS = 1000  # the most objects of a frame: ``Limits.max_detections`` allows no more


class Task(Protocol):
    """Finds objects in images or in point clouds, on the CPU.

    Attributes:
        name: the name by which tenants choose it.
        takes: what its frames hold.
        labels: the names of the classes of objects, by index.
        identity: a text that differs if its costs may differ.
    """

    @property
    def name(self) -> str:
        """As above."""

    @property
    def takes(self) -> Takes:
        """As above."""

    @property
    def labels(self) -> tuple[str, ...]:
        """As above."""

    @property
    def identity(self) -> str:
        """As above."""

    def example(self) -> Any:
        """Returns a frame's payload of usual size, by which costs are measured before frames come."""

    def check(self, payload: Any) -> None:
        """Checks a frame that came, so that it costs no other frame of its batch.

        Raises:
            FrameError: the frame would fail.
        """

    def run(self, batch: Sequence[Any]) -> Sequence[Detections]:
        """Returns the objects of each frame, in the source's pixels or metres. Threads may call it at once.

        Args:
            batch: the payloads of frames, as ``takes`` says.

        Raises:
            SplitInferError: the task failed. The frames are then dropped as ``backbone_error``.
        """

    def close(self) -> None:
        """Ends what the task has started."""
