"""Parameters that several nodes have. Each class here is a part of a node's table; see ``table``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from split_infer_ros.engines.engine import check_engine
from split_infer_ros.engines.precision import parse_precision
from split_infer_ros.engines.precision_checks import wants_torch
from split_infer_ros.models.onnx_options import OnnxOptions
from split_infer_ros.nodes.parameters.table import NodeParameters, part
from split_infer_ros.runtime.cache_pruning import DEFAULT_BYTES
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.setting import COMPUTING, LOADING, MEGABYTES, like, setting, settings_of
from split_infer_ros.split.model_spec import ModelSpec


@dataclass(frozen=True)
class LoadParameters(NodeParameters):
    """The parameters of every node that loads models."""

    PURPOSE: ClassVar[str] = LOADING

    tuning_database: str = setting(
        "", "The file of measurements. Empty: tuning.jsonl in the user's cache folder.", read_only=True
    )
    cache_bytes: float = setting(
        DEFAULT_BYTES,
        "The most disk space for what nodes keep in the user's cache folder and can make again, such as exported and "
        "compiled models. When more is written, the longest unused is removed. All nodes of a process need the "
        "same value.",
        minimum=0.0,
        maximum=1e12,
        unit=MEGABYTES,
        read_only=True,
    )


_ALIKE = ("name", *settings_of(OnnxOptions))
ONE_MODEL: dict[str, dict[str, Any]] = {
    name: {"read_only": True, "description": found.description + " Backbone and head need the same." * (name in _ALIKE)}
    for name, found in settings_of(ModelSpec).items()
}
"""How the parameters of a node with one model differ from the settings of a ``ModelSpec``; see ``part``."""


@dataclass(frozen=True)
class ModelParameters(LoadParameters):
    """The parameters of every node that serves one model.

    Raises:
        ConfigurationError: ``engine`` is not the name of an engine.
    """

    model: ModelSpec = part(ModelSpec(), **ONE_MODEL)
    engine: str = like(SharedSettings, "engine")
    precision: str = like(SharedSettings, "precision")

    def __post_init__(self) -> None:
        check_engine(self.engine)

    @property
    def model_spec(self) -> ModelSpec:
        """The model spec with which the node loads its model. It says whether the engine needs a torch model."""
        return replace(self.model, on_torch=wants_torch(self.engine, parse_precision(self.precision)))


@dataclass(frozen=True)
class TraceParameters(NodeParameters):
    """The parameter for the file of a trace of batches. Every node that runs backbones has it."""

    PURPOSE: ClassVar[str] = COMPUTING

    trace: str = setting(
        "", "The file for a trace of every batch, for Perfetto or chrome://tracing. Empty: no trace.", read_only=True
    )
