"""The memory policies that the model tells apart."""

from __future__ import annotations

import enum


class Policy(enum.Enum):
    """Kinds of memory (§II)."""

    HOST = "host"
    DEVICE = "device"
    MANAGED = "managed"
    PINNED = "pinned"


POLICIES = (Policy.DEVICE, Policy.MANAGED, Policy.PINNED)
