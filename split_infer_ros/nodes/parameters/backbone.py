"""What the backbone can be told."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from split_infer_ros.nodes.parameters.common import (
    ComputeParameters,
    ImageParameters,
    ModelParameters,
    WeightsParameters,
)
from split_infer_ros.nodes.parameters.table import parameter
from split_infer_ros.nodes.transports import SENDERS
from split_infer_ros.pipeline.auto_split import Goal
from split_infer_ros.pipeline.settings import DropPolicy, StageSettings
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.planner import Objective


@dataclass(frozen=True)
class BackboneParameters(ModelParameters, ComputeParameters, ImageParameters, WeightsParameters):
    """What the backbone can be told."""

    cuda_graphs: bool = parameter(
        True, "On a GPU, record the backbone for each batch size before serving and launch it as a whole."
    )
    split_point: str = parameter(
        "default",
        "The block after which the model is split; default is what tuning found, else the model's own, auto the best "
        "by measurement.",
    )
    objective: str = parameter(
        Objective.THROUGHPUT.value,
        "What split_point auto is best at.",
        choices=tuple(each.value for each in Objective),
    )
    latency_bound_ms: float = parameter(
        0.0,
        "Which split_point auto keeps a batch within, from its closing until its results are out; 0: none.",
        at_least=0.0,
        at_most=60_000.0,
    )
    tune_at_start: float = parameter(
        0.0,
        "Seconds of tuning for this precision at configuration, where nothing is known of the model yet; 0: none.",
        at_least=0.0,
        at_most=86_400.0,
        read_only=True,
    )
    batch_size: int = parameter(
        0, "Frames a batch; 0: one, or as tuning or split_point auto finds best.", at_least=0, at_most=256
    )
    batch_timeout_ms: float = parameter(
        50.0, "A smaller batch goes once its oldest frame has waited so long.", at_least=0.0, at_most=60_000.0
    )
    drop_policy: str = parameter(
        DropPolicy.LATEST.value,
        "When frames come too fast: latest keeps the newest, block makes senders wait.",
        choices=tuple(policy.value for policy in DropPolicy),
    )
    pool_slots: int = parameter(
        4, "Batches in flight, from closing until the results are out; each holds a slot.", at_least=1, at_most=64
    )
    transport: str = parameter(
        "intra_process",
        "The way to the head: in this process, in another one of this host, or on another host.",
        choices=tuple(SENDERS),
        read_only=True,
    )
    image_topics: tuple[str, ...] = parameter(("image",), "Topics of the cameras.", read_only=True)

    @property
    def model_spec(self) -> ModelSpec:
        """The model as the backbone loads it: on its device and in its precision."""
        return replace(super().model_spec, device=self.device, precision=self.precision)

    @property
    def goal(self) -> Goal:
        """What split_point auto looks for."""
        return Goal(Objective(self.objective), self.latency_bound_ms / 1e3 or math.inf)

    @property
    def settings(self) -> StageSettings:
        """Those that may change while frames flow; the split point and the batch size may be left open."""
        return StageSettings(
            split_point=self.split_point,
            batch_size=self.batch_size,
            batch_timeout_s=self.batch_timeout_ms / 1e3,
            drop_policy=DropPolicy(self.drop_policy),
            pool_slots=self.pool_slots,
            memory_policy=self.memory_policy,
            memory_budget_bytes=1e6 * self.memory_budget_mb or math.inf,
            cuda_graphs=self.cuda_graphs,
            **asdict(self.weights_settings),
        )
