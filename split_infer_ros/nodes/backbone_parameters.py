"""What the backbone can be told."""

from __future__ import annotations

import math
from dataclasses import dataclass

from split_infer_ros.buffers.policy import AUTO, POLICIES
from split_infer_ros.images.encodings import MAX_PIXELS
from split_infer_ros.nodes.image_input import COMPRESSED, RAW
from split_infer_ros.nodes.parameters import parameter
from split_infer_ros.nodes.transports import SENDERS
from split_infer_ros.pipeline.auto_split import Goal
from split_infer_ros.pipeline.settings import DROP_POLICIES, LATEST, StageSettings
from split_infer_ros.split.model import PRECISIONS
from split_infer_ros.split.planner import OBJECTIVES, THROUGHPUT


@dataclass(frozen=True)
class BackboneParameters:
    """What the backbone can be told."""

    model: str = parameter(
        "shapes",
        "Which model runs: of the catalogue, timm:NAME, package.module:factory or FILE.pt2.",
        read_only=True,
    )
    allow_user_code: bool = parameter(
        False, "Whether a factory or an exported program may be loaded, which may run any code.", read_only=True
    )
    weights: str = parameter("default", "Its weights: default, random, none, or the path of a file.", read_only=True)
    device: str = parameter("auto", "Where the backbone runs: auto, cpu, cuda, cuda:1, ...", read_only=True)
    precision: str = parameter(
        "fp32",
        "In which the backbone computes and its features cross; the head computes in fp32.",
        choices=tuple(PRECISIONS),
        read_only=True,
    )
    cuda_graphs: bool = parameter(
        True, "On a GPU, record the backbone for each batch size before serving and launch it as a whole."
    )
    split_point: str = parameter(
        "default", "The block after which the model is cut; default is the model's own, auto the best by measurement."
    )
    objective: str = parameter(THROUGHPUT, "What split_point auto is best at.", choices=OBJECTIVES)
    latency_bound_ms: float = parameter(
        0.0,
        "Which split_point auto keeps a batch within, from its closing until its results are out; 0: none.",
        at_least=0.0,
        at_most=60_000.0,
    )
    tuning_database: str = parameter(
        "", "The file in which measurements are kept; unless given, the user's own.", read_only=True
    )
    batch_size: int = parameter(
        0, "Frames a batch; 0: one, or as split_point auto finds best.", at_least=0, at_most=256
    )
    batch_timeout_ms: float = parameter(
        50.0, "A smaller batch goes once its oldest frame has waited so long.", at_least=0.0, at_most=60_000.0
    )
    drop_policy: str = parameter(
        LATEST, "When frames come too fast: latest keeps the newest, block makes senders wait.", choices=DROP_POLICIES
    )
    ring_slots: int = parameter(
        4, "Batches in flight, from closing until the results are out; each holds a slot.", at_least=1, at_most=64
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
    transport: str = parameter(
        "intra_process",
        "The way to the head: in this process, in another one of this host, or on another host.",
        choices=tuple(SENDERS),
        read_only=True,
    )
    image_topics: tuple[str, ...] = parameter(("image",), "Topics of the cameras.", read_only=True)
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
    trace: str = parameter(
        "", "File for a trace of every batch, which Perfetto and chrome://tracing open.", read_only=True
    )
    autostart: bool = parameter(True, "Configure and activate at start.", read_only=True)

    @property
    def goal(self) -> Goal:
        """What split_point auto looks for."""
        return Goal(self.objective, self.latency_bound_ms / 1e3 or math.inf)

    @property
    def settings(self) -> StageSettings:
        """Those that may change while frames flow; the split point and the batch size may be left open."""
        return StageSettings(
            self.split_point,
            self.batch_size,
            self.batch_timeout_ms / 1e3,
            self.drop_policy,
            self.ring_slots,
            self.memory_policy,
            1e6 * self.memory_budget_mb or math.inf,
            self.cuda_graphs,
        )
