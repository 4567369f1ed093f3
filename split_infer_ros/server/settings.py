"""Settings of the stages that may change while frames flow."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from split_infer_ros.buffers.policy import AUTO
from split_infer_ros.weight_streaming.settings import WeightsSettings


class DropPolicy(enum.Enum):
    """What happens when frames come faster than the head can follow.

    - ``LATEST``: older frames give way to newer ones, and each camera keeps its newest. This suits live cameras.
    - ``BLOCK``: the senders are made to wait. This suits recordings.
    """

    LATEST = "latest"
    BLOCK = "block"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings(WeightsSettings):
    """How frames are batched, where the model is split, and where the backbone's weights are.

    Attributes:
        split_point: name of a split point, or ``default``.
        batch_size: the most frames in a batch.
        batch_timeout_s: how long the oldest frame waits before a smaller batch is closed.
        drop_policy: what happens when the head cannot follow.
        pool_slots: the most batches in flight. Each holds a slot from its closing until its results are out.
        memory_policy: the memory of features and staging: ``device``, ``managed``, ``pinned`` or ``auto``.
        memory_budget_bytes: memory that features and staging may take together.
        lanes: whether a CPU may compute two batches side by side while they come fast. That serves more of them a
            second, and each takes longer.
        cuda_graphs: whether a GPU records the backbone for each batch size before serving and launches it as a whole.
    """

    split_point: str = "default"
    batch_size: int = 1
    batch_timeout_s: float = 0.05
    drop_policy: DropPolicy = DropPolicy.LATEST
    pool_slots: int = 4
    memory_policy: str = AUTO
    memory_budget_bytes: float = math.inf
    cuda_graphs: bool = True
    lanes: bool = False
