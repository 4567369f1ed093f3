"""How the execution of a batch computed batches of other models as well."""

from __future__ import annotations

import enum


class FusionKind(enum.Enum):
    """How a batch was executed with others.

    - ``NONE``: its execution was the batch alone.
    - ``FUSED``: batches of other models were computed at the same time, each by its own network.
    - ``STACKED``: batches of other models of its architecture were computed by one network.
    """

    NONE = enum.auto()
    FUSED = enum.auto()
    STACKED = enum.auto()
