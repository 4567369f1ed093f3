"""What to load: a model's name, its weights, and where and how its backbone runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.models.onnx_options import AUTO, OnnxOptions


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Names a model and says how to run it. Two equal specs load the same model, which they share.

    Attributes:
        name: a model of the catalogue, ``timm:NAME``, or a model of the user's own; see ``find_model``.
        weights: ``default``, ``none``, ``random`` or the path of a file.
        device: where the backbone runs: ``cpu``, ``cuda``, ``cuda:1``, ... or ``auto`` (CUDA if there is one).
        allow_user_code: whether a factory or an exported program may be loaded. Loading it may run any code.
        execution_config: how both partitions are executed, as far as the device allows.
        on_torch: whether an ONNX file becomes a model of torch, which engine torch runs.
        decoder, labels, input_size, preprocessing: what the user says about an ONNX file; see ``OnnxOptions``.
    """

    name: str
    weights: str = "default"
    device: str = "auto"
    allow_user_code: bool = False
    execution_config: ExecutionConfig = field(default_factory=ExecutionConfig)
    on_torch: bool = False
    decoder: str = AUTO
    labels: str = ""
    input_size: str = ""
    preprocessing: str = AUTO

    @property
    def onnx_options(self) -> OnnxOptions:
        """What the user says about an ONNX file.

        Raises:
            ConfigurationError: a value is unknown.
        """
        return OnnxOptions(self.decoder, self.labels, self.input_size, self.preprocessing)
