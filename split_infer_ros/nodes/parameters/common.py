"""Parts of the nodes' tables: the rows that more than one of them has."""

from __future__ import annotations

import math
from dataclasses import dataclass

from split_infer_ros.buffers.policy import AUTO, POLICIES
from split_infer_ros.images.encodings import MAX_PIXELS
from split_infer_ros.models.detections import Limits
from split_infer_ros.nodes.image_input import COMPRESSED, RAW
from split_infer_ros.nodes.parameters.table import NodeParameters, parameter
from split_infer_ros.pipeline.settings import WeightsSettings
from split_infer_ros.split.model import PRECISIONS
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.weight_streaming.residency import Residency


@dataclass(frozen=True)
class LoadParameters(NodeParameters):
    """Of a node that loads models."""

    allow_user_code: bool = parameter(
        False, "Whether a factory or an exported program may be loaded, which may run any code.", read_only=True
    )
    tuning_database: str = parameter(
        "", "The file in which measurements are kept; unless given, the user's own.", read_only=True
    )


@dataclass(frozen=True)
class ModelParameters(LoadParameters):
    """Of a node that has one model."""

    model: str = parameter(
        "shapes",
        "Which model runs, the same in backbone and head: of the catalogue, timm:NAME, package.module:factory or "
        "FILE.pt2.",
        read_only=True,
    )
    weights: str = parameter("default", "Its weights: default, random, none, or the path of a file.", read_only=True)

    @property
    def model_spec(self) -> ModelSpec:
        """The model as a head loads it: on the CPU."""
        return ModelSpec(self.model, weights=self.weights, device="cpu", allow_user_code=self.allow_user_code)


@dataclass(frozen=True)
class ImageParameters(NodeParameters):
    """Of a node that takes images."""

    image_reliability: str = parameter(
        "best_effort",
        "Of the image subscriptions; best_effort hears every publisher, reliable resends what was lost.",
        choices=("best_effort", "reliable"),
        read_only=True,
    )
    image_depth: int = parameter(
        5, "Images of a topic that the middleware keeps until taken.", at_least=1, at_most=10_000, read_only=True
    )
    image_transport: str = parameter(
        RAW,
        "raw: the images as they are; compressed: JPEG or PNG, from TOPIC/compressed.",
        choices=(RAW, COMPRESSED),
        read_only=True,
    )
    max_image_pixels: int = parameter(
        MAX_PIXELS, "Larger images are dropped unseen.", at_least=1, at_most=2**31 - 1, read_only=True
    )
    max_rate_hz: float = parameter(
        0.0,
        "Of each camera so many frames a second are taken, the others dropped as rate_limited; 0 takes all.",
        at_least=0.0,
        at_most=10_000.0,
    )


@dataclass(frozen=True)
class ComputeParameters(NodeParameters):
    """Of a node that runs backbones."""

    device: str = parameter("auto", "Where the backbone runs: auto, cpu, cuda, cuda:1, ...", read_only=True)
    precision: str = parameter(
        "fp32",
        "In which the backbone computes and its features cross; the head computes in fp32.",
        choices=tuple(PRECISIONS),
        read_only=True,
    )
    trace: str = parameter(
        "", "File for a trace of every batch, which Perfetto and chrome://tracing open.", read_only=True
    )
    memory_policy: str = parameter(
        AUTO,
        "Where features and staging lie: device (copied to the host), managed (pages go where they are touched), "
        "pinned (the GPU reads and writes the host's memory), auto; on a CPU all are plain memory.",
        choices=(*(policy.value for policy in POLICIES), AUTO),
    )
    memory_budget_mb: float = parameter(
        0.0, "What features and staging may take; more is refused. 0: no limit.", at_least=0.0, at_most=1e6
    )


@dataclass(frozen=True)
class WeightsParameters(NodeParameters):
    """Of a node that runs one half of one model."""

    weights_residency: str = parameter(
        Residency.RESIDENT.value,
        "Where this partition's weights are: resident, or read from a packed file layer by layer: synchronous (two "
        "buffers in turns), asynchronous (a ring), two_stage (the smallest ring), auto (as small as costs no time).",
        choices=tuple(residency.value for residency in Residency),
    )
    weights_budget_mb: float = parameter(
        0.0, "Memory for weights that are read; what needs more is refused. 0: no limit.", at_least=0.0, at_most=1e6
    )
    weights_delay_ms: float = parameter(
        1.0,
        "By so much, or by one hundredth if that is more, may weights_residency auto delay a batch to save memory.",
        at_least=0.0,
        at_most=60_000.0,
    )
    weights_file: str = parameter(
        "", "Packed weights that are read; unless given, a file in the user's cache folder, made at need."
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
    """Of a node that runs heads."""

    head_threads: int = parameter(
        0,
        "Cores that the head's partition may use; 0: one, or all where a GPU has the backbone "
        "(of `head`: unless tuning found another number best).",
        at_least=0,
        at_most=1024,
        read_only=True,
    )
    score_threshold: float = parameter(0.5, "Detections of a lower score are left out.", at_least=0.0, at_most=1.0)
    nms_threshold: float = parameter(
        0.5, "Of two boxes of a class that overlap by more (IoU), the lower score goes.", at_least=0.0, at_most=1.0
    )
    max_detections: int = parameter(100, "At most so many an image, the best.", at_least=1, at_most=1000)

    @property
    def limits(self) -> Limits:
        """What post-processing keeps."""
        return Limits(self.score_threshold, self.nms_threshold, self.max_detections)
