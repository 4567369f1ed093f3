"""Says whether an execution also computed batches of other models, and how."""

from __future__ import annotations

import enum


class FusionKind(enum.Enum):
    """How a batch was executed: alone, or together with batches of other models.

    - ``NONE``: the execution had this batch alone.
    - ``FUSED``: batches of other models were computed at the same time, each by its own network.
    - ``STACKED``: one network computed the batch and those of other models of the same architecture.
    """

    NONE = enum.auto()
    FUSED = enum.auto()
    STACKED = enum.auto()
