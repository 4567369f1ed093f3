"""An execution: batches that are computed together, on their way from a decision to their heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from split_infer_ros.runtime.streams import Fence
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.schedule.lane_scheduler import ScheduledExecution

if TYPE_CHECKING:
    from split_infer_ros.split.stacked_model import StackedModel


@dataclass(slots=True, eq=False)
class Execution:
    """Batches of different models that are computed together. It may have a single batch.

    Attributes:
        batches: the batches in their order, at least one.
        scheduled: the scheduler's decision, with the lane.
        stack: computes all batches as one network; None if each model computes its own batch.
        before: on a lane, earlier executions with frames of the same sources. Heads must get their batches first.
        failed: the batches that are lost, and why.
        began: when the execution was given to the device, in seconds of the steady clock.
        done: the fence after which the features are in the slots.
        is_over: whether all batches are handed over to heads or lost.
    """

    batches: Sequence[Batch]
    scheduled: ScheduledExecution
    stack: StackedModel | None = None
    before: Sequence[Execution] = ()
    failed: dict[Batch, Exception] = field(default_factory=dict)
    began: float = 0.0
    done: Fence = field(default_factory=Fence)
    is_over: bool = False

    @property
    def left(self) -> list[Batch]:
        """The batches that have not failed."""
        return [batch for batch in self.batches if batch not in self.failed]
