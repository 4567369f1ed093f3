"""Rows that the tables of several nodes share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from split_infer_ros.buffers.policy import AUTO, POLICIES
from split_infer_ros.engines.engine import AUTO as AUTO_ENGINE
from split_infer_ros.engines.engine import check_engine
from split_infer_ros.engines.precision import PRECISION_CHOICES, Precision
from split_infer_ros.models.detections import Limits
from split_infer_ros.models.onnx_options import AUTO as AUTO_OPTION
from split_infer_ros.models.onnx_options import DECODERS
from split_infer_ros.models.recipe_words import GRAMMAR
from split_infer_ros.nodes.parameters.table import NodeParameters, parameter
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.settings import WeightsSettings


@dataclass(frozen=True)
class LoadParameters(NodeParameters):
    """The rows of a node that loads models."""

    PURPOSE: ClassVar[str] = "Loading models"

    allow_user_code: bool = parameter(
        False,
        "Whether a factory or an exported program may be loaded. Both can run any code.",
        read_only=True,
    )
    tuning_database: str = parameter(
        "", "The file of measurements. Empty: tuning.jsonl in the user's cache folder.", read_only=True
    )


@dataclass(frozen=True)
class ModelParameters(LoadParameters):
    """The rows of a node that has one model."""

    PURPOSE: ClassVar[str] = "The model"

    model: str = parameter(
        "shapes",
        "The model: a name of the catalogue, timm:NAME, FILE.onnx, package.module:factory or FILE.pt2. Backbone and "
        "head need the same.",
        read_only=True,
    )
    weights: str = parameter(
        "default",
        "The model's weights: default, none (as built), random (seeded; results depend on the image), or the path of a "
        "safetensors file or a state dict.",
        read_only=True,
    )

    decoder: str = parameter(
        AUTO_OPTION,
        "How the outputs of FILE.onnx are read. auto: recognised by names, shapes and a trial. Else one of "
        f"{', '.join(DECODERS[1:])}; or a declaration such as boxes=OUTPUT[0:4],scores=OUTPUT[4:],encoding=corners. "
        "Backbone and head need the same.",
        read_only=True,
    )
    labels: str = parameter(
        "",
        "The file of the class names of FILE.onnx: text with one name per line, JSON or YAML. Empty: the names in "
        "the model's metadata, or else numbers. Backbone and head need the same.",
        read_only=True,
    )
    input_size: str = parameter(
        "",
        "The input size of FILE.onnx as HEIGHTxWIDTH, if the file does not fix it. Empty: the size in the model's "
        "metadata. Backbone and head need the same.",
        read_only=True,
    )
    preprocessing: str = parameter(
        AUTO_OPTION,
        f"How images become the input of FILE.onnx. auto: as its exporter does it. Else {GRAMMAR}. Backbone and head "
        "need the same.",
        read_only=True,
    )

    @property
    def model_spec(self) -> ModelSpec:
        """The model as a head loads it: on the CPU."""
        return ModelSpec(
            self.model,
            weights=self.weights,
            device="cpu",
            allow_user_code=self.allow_user_code,
            decoder=self.decoder,
            labels=self.labels,
            input_size=self.input_size,
            preprocessing=self.preprocessing,
        )


@dataclass(frozen=True)
class ComputeParameters(NodeParameters):
    """The rows of a node that runs backbones.

    Raises:
        ConfigurationError: there is no such engine.
    """

    PURPOSE: ClassVar[str] = "Where and how it computes"

    device: str = parameter("auto", "Where the backbone runs: auto, cpu, cuda, cuda:1, ...", read_only=True)
    engine: str = parameter(
        AUTO_ENGINE,
        "What executes the backbone: auto, torch, onnxruntime, openvino, onnxruntime:PROVIDER for a provider of the "
        "installed ONNX Runtime, such as CUDA or TensorRT, or openvino:DEVICE for a device of OpenVINO, such as GPU or "
        "NPU. auto: the fastest one. For a new model, the engines are compared once.",
        read_only=True,
    )
    precision: str = parameter(
        Precision.FP32.value,
        "The precision in which the backbone computes. One that the engine or processor does not support is refused. "
        "With bf16 or fp32 (and the like), fp32 is then used instead.",
        choices=PRECISION_CHOICES,
        read_only=True,
    )
    trace: str = parameter(
        "", "The file for a trace of every batch, for Perfetto or chrome://tracing. Empty: no trace.", read_only=True
    )
    memory_policy: str = parameter(
        AUTO,
        "Where features and staging buffers are stored: device (copied to the host), managed (pages move to where they "
        "are used), pinned (the GPU accesses the host's memory), or auto. On a GPU that shares the CPU's memory, "
        "policies other than auto also cover weights and activations. Without a GPU, all are plain memory.",
        choices=(*(policy.value for policy in POLICIES), AUTO),
    )
    memory_budget_mb: float = parameter(
        0.0,
        "The most memory for features and staging buffers. Settings that need more are refused. 0: no limit.",
        minimum=0.0,
        maximum=1e6,
    )

    def __post_init__(self) -> None:
        check_engine(self.engine)


@dataclass(frozen=True)
class WeightsParameters(NodeParameters):
    """The rows of a node that runs one partition of one model."""

    PURPOSE: ClassVar[str] = "Streamed weights"

    weights_residency: str = parameter(
        Residency.RESIDENT.value,
        "Where this partition's weights are: resident in memory, or streamed from a packed file layer by layer: "
        "synchronous (two buffers in lockstep), asynchronous (a ring buffer), two_stage (the smallest ring buffer), "
        "auto (the least memory that causes no more delay than allowed).",
        choices=tuple(residency.value for residency in Residency),
    )
    weights_budget_mb: float = parameter(
        0.0,
        "The most memory for streamed weights. Settings that need more are refused. 0: no limit.",
        minimum=0.0,
        maximum=1e6,
    )
    weights_delay_ms: float = parameter(
        1.0,
        "How many milliseconds weights_residency auto may delay a batch to save memory.",
        minimum=0.0,
        maximum=60_000.0,
    )
    weights_delay_share: float = parameter(
        0.0,
        "The share of a batch's time by which weights_residency auto may delay it, if that is longer than "
        "weights_delay_ms. 0.01 is one hundredth. 0: only weights_delay_ms counts.",
        minimum=0.0,
        maximum=100.0,
    )
    weights_file: str = parameter(
        "",
        "The packed file of streamed weights, made for the partition's number of cores and batch size. Empty: a file "
        "in the user's cache folder, which is made when needed.",
    )

    @property
    def weights_settings(self) -> WeightsSettings:
        """Where this partition's weights are."""
        return WeightsSettings(
            weights_residency=Residency(self.weights_residency),
            weights_budget_bytes=1e6 * self.weights_budget_mb or math.inf,
            weights_delay_s=self.weights_delay_ms / 1e3,
            weights_delay_share=self.weights_delay_share,
            weights_file=self.weights_file,
        )


@dataclass(frozen=True)
class FinishParameters(NodeParameters):
    """The rows of a node that runs heads."""

    PURPOSE: ClassVar[str] = "Detections"

    head_threads: int = parameter(
        0,
        "CPU cores for the head. 0: on a machine with a GPU all cores, otherwise the number that tuning found, or one. "
        "If the backbone of the node head runs on the CPU of a machine with a GPU, set 1.",
        minimum=0,
        maximum=1024,
        read_only=True,
    )
    score_threshold: float = parameter(
        0.5, "Detections with a lower score are not published.", minimum=0.0, maximum=1.0
    )
    nms_threshold: float = parameter(
        0.5,
        "If two boxes of a class overlap by more than this (IoU), the one with the lower score is removed.",
        minimum=0.0,
        maximum=1.0,
    )
    max_detections: int = parameter(
        100, "The most detections per image. Those with the best scores are kept.", minimum=1, maximum=1000
    )

    @property
    def limits(self) -> Limits:
        """What post-processing keeps."""
        return Limits(self.score_threshold, self.nms_threshold, self.max_detections)
