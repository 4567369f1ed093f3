"""What to load: a model's name, its weights, and where and how its backbone runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from split_infer_ros.engines.execution_config import ExecutionConfig


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Names a model and says how to run it. Two equal specs load the same model, which they share.

    Attributes:
        name: a model of the catalogue, ``timm:NAME``, or a model of the user's own; see ``find_model``.
        weights: ``default``, ``none``, ``random`` or the path of a file.
        device: where the backbone runs: ``cpu``, ``cuda``, ``cuda:1``, ... or ``auto`` (CUDA if there is one).
        precision: the backbone computes in ``fp32``, ``fp16`` or ``bf16``.
        allow_user_code: whether a model of the user's own may be loaded. Loading it may run any code.
        execution_config: how both partitions are executed, as far as device and precision allow.
    """

    name: str
    weights: str = "default"
    device: str = "auto"
    precision: str = "fp32"
    allow_user_code: bool = False
    execution_config: ExecutionConfig = field(default_factory=ExecutionConfig)
