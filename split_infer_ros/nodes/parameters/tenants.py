"""The parameters of the node ``tenants``: those of each tenant, and those that all share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.onnx_options import OnnxOptions
from split_infer_ros.nodes.parameters.backbone import BackboneParameters
from split_infer_ros.nodes.parameters.common import (
    ComputeParameters,
    FinishParameters,
    LoadParameters,
    ModelParameters,
)
from split_infer_ros.nodes.parameters.images import ImageParameters
from split_infer_ros.nodes.parameters.table import family, like, parameter
from split_infer_ros.nodes.transports import INTRA_PROCESS
from split_infer_ros.server.schedule.request import LatePolicy
from split_infer_ros.server.settings import DropPolicy
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import MAX_PRIORITY, Tenant, check_unique_names
from split_infer_ros.weight_streaming.residency import Residency

TENANTS = "tenants"
TENANT = "tenant"  # in front of a tenant's name and parameter


@dataclass(frozen=True)
class TenantParameters:
    """The parameters of one tenant."""

    image_topic: str = parameter("", "The image topic of its camera. Empty: NAME/image.")
    model: str = like(
        ModelParameters,
        "model",
        description="The model for its images: a name of the catalogue, timm:NAME, FILE.onnx, package.module:factory "
        "or FILE.pt2.",
        read_only=False,
    )
    weights: str = like(ModelParameters, "weights", read_only=False)
    decoder: str = like(
        ModelParameters,
        "decoder",
        description="How the outputs of FILE.onnx are read. auto: recognised by their shapes.",
        read_only=False,
    )
    labels: str = like(
        ModelParameters,
        "labels",
        description="The file of the class names of FILE.onnx: text with one name per line, JSON or YAML. Empty: the "
        "names in the model's metadata, or else numbers.",
        read_only=False,
    )
    input_size: str = like(
        ModelParameters,
        "input_size",
        description="The input size of FILE.onnx as HEIGHTxWIDTH, if the file does not fix it. Empty: the size in the "
        "model's metadata.",
        read_only=False,
    )
    preprocessing: str = like(
        ModelParameters,
        "preprocessing",
        description="How images become the input of FILE.onnx, as for the parameter preprocessing of a single model.",
        read_only=False,
    )
    deadline_ms: float = parameter(
        0.0,
        "How soon after an image's arrival the backbone should be done with it, in milliseconds. 0: no deadline. The "
        "model's execution time then decides the order.",
        minimum=0.0,
        maximum=60_000.0,
    )
    priority: int = parameter(
        0,
        "Each step up halves the time within which its images are processed.",
        minimum=-MAX_PRIORITY,
        maximum=MAX_PRIORITY,
    )
    when_late: str = parameter(
        LatePolicy.FINISH.value,
        "What happens to an image that cannot meet its deadline. finish: it is processed. drop: it is dropped as "
        "deadline.",
        choices=tuple(policy.value for policy in LatePolicy),
    )


@dataclass(frozen=True)
class TenantsParameters(LoadParameters, ComputeParameters, FinishParameters, ImageParameters):
    """The parameters of the node ``tenants``.

    Raises:
        ConfigurationError: a tenant's name is not allowed, or is listed twice.
    """

    PURPOSE: ClassVar[str] = "Tenants and their batches"

    tenants: tuple[str, ...] = parameter(
        (), "The names of the tenants that run. Their own parameters are tenant.NAME.*."
    )
    of: Mapping[str, TenantParameters] = family(TENANTS, TENANT, TenantParameters)
    window: int = parameter(
        5, "How many waiting images the scheduler considers for one execution.", minimum=1, maximum=1000
    )
    max_batch_size: int = parameter(8, "The most images of one model in a batch.", minimum=1, maximum=256)
    max_waiting: int = parameter(
        2,
        "The most waiting images of one tenant. When one more comes, the tenant's oldest image is dropped.",
        minimum=1,
        maximum=1000,
    )
    batch_timeout_ms: float = like(BackboneParameters, "batch_timeout_ms", default=0.0)
    drop_policy: str = like(
        BackboneParameters,
        "drop_policy",
        description="What happens when a tenant has more waiting images than max_waiting. latest: its newer images "
        "replace older ones, for live cameras. block: senders wait, for recordings.",
    )
    engine: str = like(
        ComputeParameters,
        "engine",
        description="What executes the models, backbones and heads: auto, torch, onnxruntime, openvino, "
        "onnxruntime:PROVIDER or openvino:DEVICE. auto: what was measured, else torch, or onnxruntime for an ONNX "
        "file.",
    )
    split_point: str = parameter(
        "default",
        "Where each model is split: at its own default (or the one that tuning found), after its last block (output), "
        "before its first (input), or after the block of this name.",
    )
    transport: str = like(
        BackboneParameters,
        "transport",
        description="How features go to the heads: intra_process (one head for each model, in this process), "
        "shared_memory or network (to a node head for each tenant in the namespace NAME, on this host or another).",
    )
    pool_slots: int = like(
        BackboneParameters, "pool_slots", default=2, description="The most batches in flight of each model."
    )
    cuda_graphs: bool = like(
        BackboneParameters,
        "cuda_graphs",
        description="On a GPU: whether executions run as CUDA graphs, which are recorded before.",
        read_only=True,
    )
    graph_memory_mb: float = parameter(
        1000.0, "The most GPU memory that recorded graphs may keep.", minimum=0.0, maximum=1e6, read_only=True
    )
    weights_budget_mb: float = like(
        BackboneParameters,
        "weights_budget_mb",
        description="On a CPU: the memory through which the weights of all models are streamed in turn. 0: weights "
        "stay resident.",
        read_only=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if "" in self.tenants:
            raise ConfigurationError("A tenant cannot be named ''; it takes letters and digits, with a letter first.")
        declared = {name: self._tenant(name) for name in self.of}
        check_unique_names([declared[name] for name in self.tenants if name in declared])

    @property
    def wanted(self) -> list[Tenant]:
        """The tenants that the parameter ``tenants`` lists."""
        return [self._tenant(name) for name in self.tenants]

    @property
    def has_own_heads(self) -> bool:
        """Whether each tenant has a head of its own, in another process."""
        return self.transport != INTRA_PROCESS

    @property
    def settings(self) -> SharedSettings:
        """The settings that all tenants share."""
        streams = self.weights_budget_mb > 0
        return SharedSettings(
            window=self.window,
            batch_size=self.max_batch_size,
            batch_timeout_s=self.batch_timeout_ms / 1e3,
            drop_policy=DropPolicy(self.drop_policy),
            max_waiting=self.max_waiting,
            split_point=self.split_point,
            pool_slots=self.pool_slots,
            memory_policy=self.memory_policy,
            memory_budget_bytes=1e6 * self.memory_budget_mb or math.inf,
            cuda_graphs=self.cuda_graphs,
            graph_bytes=int(1e6 * self.graph_memory_mb),
            head_threads=self.head_threads,
            weights_residency=Residency.ASYNCHRONOUS if streams else Residency.RESIDENT,
            weights_budget_bytes=1e6 * self.weights_budget_mb or math.inf,
            device=self.device,
            engine=self.engine,
            precision=self.precision,
            allow_user_code=self.allow_user_code,
        )

    def image_topic(self, name: str) -> str:
        """Returns the topic of a tenant's camera."""
        return self.of[name].image_topic or f"{name}/image"

    def _tenant(self, name: str) -> Tenant:
        values = self.of[name]
        return Tenant(
            name=name,
            model=values.model,
            weights=values.weights,
            onnx_options=OnnxOptions(values.decoder, values.labels, values.input_size, values.preprocessing),
            deadline_s=values.deadline_ms / 1e3,
            priority=values.priority,
            when_late=LatePolicy(values.when_late),
            own_head=self.has_own_heads,
        )
