"""Where the weights of a partition are: what a user may choose."""

from __future__ import annotations

import math
from dataclasses import dataclass

from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.ring_size import AllowedDelay


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSettings:
    """Where the weights of a partition are.

    Attributes:
        weights_residency: whether weights are in memory, or how they are read layer by layer while the partition runs.
        weights_budget_bytes: memory that streamed weights may take.
        weights_delay_s: by how many seconds ``auto`` may delay a pass to save memory.
        weights_delay_share: by which part of a pass ``auto`` may delay it, if that is longer.
        weights_file: the packed file from which weights are read. If empty, a file in the user's cache folder is used,
            and made if there is none.
    """

    weights_residency: Residency = Residency.RESIDENT
    weights_budget_bytes: float = math.inf
    weights_delay_s: float = 1e-3
    weights_delay_share: float = 0.0
    weights_file: str = ""

    @property
    def allowed_delay(self) -> AllowedDelay:
        """The delay that ``auto`` may add to a pass with resident weights."""
        return AllowedDelay(self.weights_delay_s, self.weights_delay_share)
