"""The names that stand for weights, and the suffix of safetensors files."""

from __future__ import annotations

from enum import Enum

SAFETENSORS_SUFFIX = ".safetensors"


class NamedWeights(str, Enum):
    """A name that the user gives in place of the path of a file of weights."""

    DEFAULT = "default"  # shipped with the package, or downloaded once
    RANDOM = "random"  # seeded; the model's outputs depend on its images
    NONE = "none"  # what the model was built with
