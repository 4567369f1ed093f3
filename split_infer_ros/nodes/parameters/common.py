"""Rows that the tables of several nodes share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from split_infer_ros.buffers.policy import AUTO, POLICIES
from split_infer_ros.engines.engine import AUTO as AUTO_ENGINE
from split_infer_ros.engines.engine import check_engine
from split_infer_ros.images.sizes import MAX_PIXELS
from split_infer_ros.models.detections import Limits
from split_infer_ros.models.onnx_options import AUTO as AUTO_OPTION
from split_infer_ros.models.onnx_options import Decoder, Recipe
from split_infer_ros.nodes.parameters.table import NodeParameters, parameter
from split_infer_ros.pipeline.settings import WeightsSettings
from split_infer_ros.split.model import PRECISIONS
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.weight_streaming.residency import Residency


class ImageReliability(Enum):
    """The reliability of image subscriptions."""

    BEST_EFFORT = "best_effort"
    RELIABLE = "reliable"


class ImageTransport(Enum):
    """The form in which images come."""

    RAW = "raw"
    COMPRESSED = "compressed"


@dataclass(frozen=True)
class LoadParameters(NodeParameters):
    """The rows of a node that loads models."""

    allow_user_code: bool = parameter(
        False,
        "Whether to load a factory or an exported program, which can run any code.",
        read_only=True,
    )
    tuning_database: str = parameter(
        "", "The file of measurements; empty: the user's own file in the cache folder.", read_only=True
    )


@dataclass(frozen=True)
class ModelParameters(LoadParameters):
    """The rows of a node that has one model."""

    model: str = parameter(
        "shapes",
        "The model: a name of the catalogue, timm:NAME, FILE.onnx, package.module:factory or FILE.pt2. Backbone and "
        "head need the same.",
        read_only=True,
    )
    weights: str = parameter(
        "default", "The model's weights: default, random, none, or the path of a file.", read_only=True
    )

    decoder: str = parameter(
        AUTO_OPTION,
        "How the outputs of FILE.onnx are read; auto recognises them. Backbone and head need the same.",
        choices=(AUTO_OPTION, *(decoder.value for decoder in Decoder)),
        read_only=True,
    )
    labels: str = parameter(
        "",
        "The names of the classes of FILE.onnx: a text file with one name a line, or a JSON file. Empty: the names in "
        "the model's metadata, else numbers. Backbone and head need the same.",
        read_only=True,
    )
    input_size: str = parameter(
        "",
        "HEIGHTxWIDTH of the input of FILE.onnx, if the file leaves it open. Empty: the size in the model's metadata. "
        "Backbone and head need the same.",
        read_only=True,
    )
    preprocessing: str = parameter(
        AUTO_OPTION,
        "How images become the input of FILE.onnx; auto does what the exporter does. Backbone and head need the same.",
        choices=(AUTO_OPTION, *(recipe.value for recipe in Recipe)),
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
class ImageParameters(NodeParameters):
    """The rows of a node that subscribes to images."""

    image_reliability: str = parameter(
        ImageReliability.BEST_EFFORT.value,
        "Reliability of the image subscriptions: best_effort matches every publisher, reliable resends lost images.",
        choices=tuple(reliability.value for reliability in ImageReliability),
        read_only=True,
    )
    image_depth: int = parameter(
        5,
        "How many images of each topic the middleware keeps until the node takes them.",
        minimum=1,
        maximum=10_000,
        read_only=True,
    )
    image_transport: str = parameter(
        ImageTransport.RAW.value,
        "The form of the images: raw, or compressed (JPEG or PNG, from TOPIC/compressed).",
        choices=tuple(transport.value for transport in ImageTransport),
        read_only=True,
    )
    max_image_pixels: int = parameter(
        MAX_PIXELS,
        "Images with more pixels are dropped before they are decoded.",
        minimum=1,
        maximum=2**31 - 1,
        read_only=True,
    )
    max_rate_hz: float = parameter(
        0.0,
        "Frames a second that are taken of each camera; further frames are dropped as rate_limited. 0: no limit.",
        minimum=0.0,
        maximum=10_000.0,
    )


@dataclass(frozen=True)
class ComputeParameters(NodeParameters):
    """The rows of a node that runs backbones.

    Raises:
        ConfigurationError: there is no such engine.
    """

    device: str = parameter("auto", "Where the backbone runs: auto, cpu, cuda, cuda:1, ...", read_only=True)
    engine: str = parameter(
        AUTO_ENGINE,
        "What executes the backbone: auto, torch, onnxruntime, openvino, or onnxruntime:PROVIDER for a provider of the "
        "installed ONNX Runtime, such as CUDA or TensorRT. auto: the fastest by measurement; what was never measured "
        "is compared once.",
        read_only=True,
    )
    precision: str = parameter(
        "fp32",
        "Precision of the backbone and of its features. The head always computes in fp32.",
        choices=tuple(PRECISIONS),
        read_only=True,
    )
    trace: str = parameter(
        "", "The file for a trace of every batch, for Perfetto or chrome://tracing; empty: none.", read_only=True
    )
    memory_policy: str = parameter(
        AUTO,
        "The memory of features and staging buffers: device (copied to the host), managed (pages move to where they "
        "are used), pinned (the GPU accesses the host's memory), or auto. On a CPU all are plain memory.",
        choices=(*(policy.value for policy in POLICIES), AUTO),
    )
    memory_budget_mb: float = parameter(
        0.0,
        "The most memory for features and staging buffers; settings that need more are refused. 0: no limit.",
        minimum=0.0,
        maximum=1e6,
    )

    def __post_init__(self) -> None:
        check_engine(self.engine)


@dataclass(frozen=True)
class WeightsParameters(NodeParameters):
    """The rows of a node that runs one partition of one model."""

    weights_residency: str = parameter(
        Residency.RESIDENT.value,
        "Where this partition's weights are: resident in memory, or streamed from a packed file layer by layer: "
        "synchronous (two buffers in turn), asynchronous (a ring buffer), two_stage (the smallest ring buffer), auto "
        "(the smallest memory that costs no time).",
        choices=tuple(residency.value for residency in Residency),
    )
    weights_budget_mb: float = parameter(
        0.0,
        "The most memory for streamed weights; settings that need more are refused. 0: no limit.",
        minimum=0.0,
        maximum=1e6,
    )
    weights_delay_ms: float = parameter(
        1.0,
        "How long weights_residency auto may delay a batch to save memory, in milliseconds. One hundredth of the "
        "batch's time is allowed if that is longer.",
        minimum=0.0,
        maximum=60_000.0,
    )
    weights_file: str = parameter(
        "",
        "The packed file of streamed weights; empty: a file in the user's cache folder, which is made when needed.",
    )

    @property
    def weights_settings(self) -> WeightsSettings:
        """Where this partition's weights are."""
        return WeightsSettings(
            weights_residency=Residency(self.weights_residency),
            weights_budget_bytes=1e6 * self.weights_budget_mb or math.inf,
            weights_delay_s=self.weights_delay_ms / 1e3,
            weights_file=self.weights_file,
        )


@dataclass(frozen=True)
class FinishParameters(NodeParameters):
    """The rows of a node that runs heads."""

    head_threads: int = parameter(
        0,
        "Cores for the head's partition. 0: one core, or all cores if a GPU runs the backbone. The node head prefers "
        "a number that tuning found.",
        minimum=0,
        maximum=1024,
        read_only=True,
    )
    score_threshold: float = parameter(0.5, "Detections with a lower score are left out.", minimum=0.0, maximum=1.0)
    nms_threshold: float = parameter(
        0.5,
        "If two boxes of a class overlap by more (IoU), the one with the lower score is left out.",
        minimum=0.0,
        maximum=1.0,
    )
    max_detections: int = parameter(
        100, "The most detections an image; the best ones are kept.", minimum=1, maximum=1000
    )

    @property
    def limits(self) -> Limits:
        """What post-processing keeps."""
        return Limits(self.score_threshold, self.nms_threshold, self.max_detections)
