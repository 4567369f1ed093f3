"""What to load: a model's name, its weights, and where and how its backbone runs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar

from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.models.onnx_options import OnnxOptions
from split_infer_ros.setting import COMPUTING, LOADING, setting


@dataclass(frozen=True, slots=True)
class ModelSpec(OnnxOptions):
    """Names a model and says how to run it. Equal specs share one loaded model.

    Attributes:
        execution_config: how both partitions are executed, as far as the device allows.
        on_torch: True makes an ONNX file a model of torch, which engine torch runs. False loads ``shapes`` from its
            ONNX file. None does neither, except that ``shapes`` is loaded from its file if torch is not installed.

    Raises:
        ConfigurationError: an option for an ONNX file has an unknown value.
    """

    PURPOSE: ClassVar[str] = OnnxOptions.PURPOSE

    name: str = setting(
        "shapes",
        "The model: a name of the catalogue, timm:NAME, FILE.onnx, package.module:factory or FILE.pt2.",
        name="model",
    )
    weights: str = setting(
        "default",
        "The model's weights: default, none (as built), random (seeded; results depend on the image), or the path of a "
        "safetensors file or a state dict.",
    )
    device: str = setting("auto", "Where the backbone runs: auto, cpu, cuda, cuda:1, ...", purpose=COMPUTING)
    allow_user_code: bool = setting(
        False, "Whether a factory or an exported program may be loaded. Both can run any code.", purpose=LOADING
    )
    execution_config: ExecutionConfig = field(default_factory=ExecutionConfig)
    on_torch: bool | None = None

    @property
    def onnx_options(self) -> OnnxOptions:
        """What the user says about an ONNX file."""
        return OnnxOptions(**{each.name: getattr(self, each.name) for each in fields(OnnxOptions)})
