"""The parameters of the node ``backbone``."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from split_infer_ros.engines.engine import Engine
from split_infer_ros.nodes.parameters.common import (
    ComputeParameters,
    ModelParameters,
    WeightsParameters,
)
from split_infer_ros.nodes.parameters.images import ImageParameters
from split_infer_ros.nodes.parameters.table import parameter
from split_infer_ros.nodes.transports import INTRA_PROCESS, SENDERS
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.planner import Goal, Objective


@dataclass(frozen=True)
class BackboneParameters(ModelParameters, ComputeParameters, ImageParameters, WeightsParameters):
    """The parameters of the node ``backbone``."""

    PURPOSE: ClassVar[str] = "Split point, batches and features"

    cuda_graphs: bool = parameter(
        True,
        "On a GPU: whether the backbone runs as a CUDA graph, which is recorded for each batch size before serving.",
    )
    split_point: str = parameter(
        "default",
        "The block after which the model is split. default: the one that tuning found, or else the model's own. auto: "
        "the one that measures best.",
    )
    objective: str = parameter(
        Objective.THROUGHPUT.value,
        "What split_point auto optimises: throughput or latency. With throughput, a CPU also computes two batches at "
        "the same time while frames come nearly as fast as it can process them one by one, or faster. This serves more "
        "frames, but each one takes longer.",
        choices=tuple(objective.value for objective in Objective),
    )
    latency_bound_ms: float = parameter(
        0.0,
        "The longest latency that split_point auto allows, from the closing of a batch to its results. 0: no limit.",
        minimum=0.0,
        maximum=60_000.0,
    )
    tune_at_start: float = parameter(
        0.0,
        "Seconds for which the node tunes the model when it is configured, if there are no measurements for this "
        "precision. 0: none. In one process, the head uses the number of cores that was found from its next start.",
        minimum=0.0,
        maximum=86_400.0,
        read_only=True,
    )
    batch_size: int = parameter(
        0,
        "Frames in a batch. 0: one, or the best number that tuning or split_point auto found.",
        minimum=0,
        maximum=256,
    )
    batch_timeout_ms: float = parameter(
        50.0,
        "How long the oldest frame waits for others before a smaller batch is processed, in milliseconds.",
        minimum=0.0,
        maximum=60_000.0,
    )
    drop_policy: str = parameter(
        DropPolicy.LATEST.value,
        "What happens when frames come too fast. latest: newer frames replace waiting ones, for live cameras. Of each "
        "camera, at least the newest frame waits. block: senders wait, for recordings.",
        choices=tuple(policy.value for policy in DropPolicy),
    )
    pool_slots: int = parameter(
        4,
        "The most batches in flight. Each holds a slot until its results are published.",
        minimum=1,
        maximum=64,
    )
    transport: str = parameter(
        INTRA_PROCESS,
        "How features go to the head: intra_process, shared_memory (to another process on this host) or network (to "
        "another host).",
        choices=tuple(SENDERS),
        read_only=True,
    )
    image_topics: tuple[str, ...] = parameter(
        ("image",), "The image topics of the cameras. Frames of all cameras share batches.", read_only=True
    )

    @property
    def model_spec(self) -> ModelSpec:
        """The model as the backbone loads it: on its device and for its engine."""
        on_torch = self.engine == Engine.TORCH.value
        return replace(super().model_spec, device=self.device, on_torch=on_torch)

    @property
    def goal(self) -> Goal:
        """What split_point ``auto`` looks for."""
        return Goal(Objective(self.objective), self.latency_bound_ms / 1e3 or math.inf)

    @property
    def settings(self) -> StageSettings:
        """The settings that may change while frames flow. The split point and the batch size may be left open."""
        return StageSettings(
            split_point=self.split_point,
            batch_size=self.batch_size,
            batch_timeout_s=self.batch_timeout_ms / 1e3,
            drop_policy=DropPolicy(self.drop_policy),
            pool_slots=self.pool_slots,
            memory_policy=self.memory_policy,
            memory_budget_bytes=1e6 * self.memory_budget_mb or math.inf,
            cuda_graphs=self.cuda_graphs,
            lanes=self.objective == Objective.THROUGHPUT.value,
            **asdict(self.weights_settings),
        )
