"""Weights that have names, and those of files by their suffix."""

from __future__ import annotations

from enum import Enum

SAFETENSORS_SUFFIX = ".safetensors"


class NamedWeights(str, Enum):
    """Weights that are named instead of being read from a file of the user's."""

    DEFAULT = "default"  # shipped, or downloaded once
    RANDOM = "random"  # seeded; outputs depend on the images
    NONE = "none"  # as the model was built
