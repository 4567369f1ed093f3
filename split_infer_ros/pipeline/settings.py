"""What of the stages may change while frames flow."""

from __future__ import annotations

import math
from dataclasses import dataclass

from split_infer_ros.buffers.policy import AUTO
from split_infer_ros.weight_streaming.residency import Residency

LATEST, BLOCK = "latest", "block"
DROP_POLICIES = (LATEST, BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSettings:
    """Where the weights of a partition are.

    Attributes:
        weights_residency: in memory, or read layer by layer while the partition runs.
        weights_budget_bytes: which weights that are read may take.
        weights_delay_s: of a pass, which ``auto`` may add to save memory; one hundredth is allowed in any case.
        weights_file: from which they are read; unless given, one in the user's cache folder, made at need.
    """

    weights_residency: Residency = Residency.RESIDENT
    weights_budget_bytes: float = math.inf
    weights_delay_s: float = 1e-3
    weights_file: str = ""


@dataclass(frozen=True, slots=True)
class StageSettings(WeightsSettings):
    """How frames are batched, where the model is split, and where the backbone's weights are.

    Attributes:
        split_point: name of a split point, or ``default``.
        batch_size: frames a batch.
        batch_timeout_s: a smaller batch goes once its oldest frame has waited so long.
        drop_policy: ``latest``: when the head cannot follow, older frames give way to newer ones (live
            cameras); ``block``: the senders are made to wait (recordings).
        pool_slots: batches in flight, from the closing of a batch until its results are out; each holds a slot.
        memory_policy: what features and staging lie in: ``device``, ``managed``, ``pinned`` or ``auto``.
        memory_budget_bytes: which features and staging may take together.
        cuda_graphs: on a GPU, record the backbone for each batch size before serving, and launch it as a whole.
    """

    split_point: str = "default"
    batch_size: int = 1
    batch_timeout_s: float = 0.05
    drop_policy: str = LATEST
    pool_slots: int = 4
    memory_policy: str = AUTO
    memory_budget_bytes: float = math.inf
    cuda_graphs: bool = True
