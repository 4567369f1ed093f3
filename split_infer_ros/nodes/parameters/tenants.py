"""What the node ``tenants`` can be told: of each tenant, and of what all share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from split_infer_ros.nodes.parameters.backbone import BackboneParameters
from split_infer_ros.nodes.parameters.common import (
    ComputeParameters,
    FinishParameters,
    ImageParameters,
    LoadParameters,
    ModelParameters,
)
from split_infer_ros.nodes.parameters.table import family, like, parameter
from split_infer_ros.serving.request import LatePolicy
from split_infer_ros.serving.shared_settings import SharedSettings
from split_infer_ros.serving.tenant import MAX_PRIORITY, Tenant, check_unique_names

TENANTS = "tenants"


@dataclass(frozen=True)
class TenantParameters:
    """What one tenant asks for."""

    image_topic: str = parameter("", "Topic of its camera; unless given, NAME/image.")
    model: str = like(
        ModelParameters,
        "model",
        description="Which model looks at its images: of the catalogue, timm:NAME, package.module:factory or FILE.pt2.",
        read_only=False,
    )
    weights: str = like(ModelParameters, "weights", read_only=False)
    deadline_ms: float = parameter(
        0.0,
        "How soon after an image's arrival its backbone should be done; 0: its turn is by the model's execution time.",
        at_least=0.0,
        at_most=60_000.0,
    )
    priority: int = parameter(
        0,
        "One more partitions the time in which its images have their turn.",
        at_least=-MAX_PRIORITY,
        at_most=MAX_PRIORITY,
    )
    when_late: str = parameter(
        LatePolicy.FINISH.value,
        "What becomes of an image that cannot meet its deadline; dropped ones are named so.",
        choices=tuple(policy.value for policy in LatePolicy),
    )


@dataclass(frozen=True)
class TenantsParameters(LoadParameters, ComputeParameters, FinishParameters, ImageParameters):
    """What the node ``tenants`` can be told.

    Raises:
        ConfigurationError: a tenant's name cannot be one, or is listed twice.
    """

    tenants: tuple[str, ...] = parameter((), "Names of the tenants that run; tenants.NAME.* says what each asks.")
    of: Mapping[str, TenantParameters] = family(TENANTS, TenantParameters)
    window: int = parameter(
        5, "How many waiting images the scheduler looks at for one execution.", at_least=1, at_most=1000
    )
    max_batch_size: int = parameter(8, "How many images of one model may be one batch.", at_least=1, at_most=256)
    max_waiting: int = parameter(
        2, "How many images of one tenant may wait. With one more, its oldest is dropped.", at_least=1, at_most=1000
    )
    split_point: str = parameter(
        "default",
        "Where each model is split: at its own default, or after all of it (output) or nothing (input).",
        choices=("default", "output", "input"),
        read_only=True,
    )
    pool_slots: int = like(BackboneParameters, "pool_slots", default=2)
    cuda_graphs: bool = like(
        BackboneParameters,
        "cuda_graphs",
        description="On a GPU, record what runs at once and launch it as a whole.",
        read_only=True,
    )
    graph_memory_mb: float = parameter(
        1000.0, "Which recorded graphs may keep of a GPU's memory.", at_least=0.0, at_most=1e6, read_only=True
    )

    weights_budget_mb: float = like(
        BackboneParameters,
        "weights_budget_mb",
        description="Memory through which all models' weights are read in turns, on the CPU. 0: they stay resident.",
        read_only=True,
    )

    def __post_init__(self) -> None:
        known = {name: self._tenant(name) for name in self.of}
        check_unique_names([known[name] for name in self.tenants if name in known])

    @property
    def wanted(self) -> list[Tenant]:
        """The tenants that are listed."""
        return [self._tenant(name) for name in self.tenants]

    @property
    def settings(self) -> SharedSettings:
        """What all share."""
        return SharedSettings(
            window=self.window,
            max_batch_size=self.max_batch_size,
            max_waiting=self.max_waiting,
            split_point=self.split_point,
            pool_slots=self.pool_slots,
            memory_policy=self.memory_policy,
            memory_budget_bytes=1e6 * self.memory_budget_mb or math.inf,
            cuda_graphs=self.cuda_graphs,
            graph_bytes=int(1e6 * self.graph_memory_mb),
            head_threads=self.head_threads,
            weights_budget_bytes=1e6 * self.weights_budget_mb,
            device=self.device,
            precision=self.precision,
            allow_user_code=self.allow_user_code,
        )

    def image_topic(self, name: str) -> str:
        """Of a tenant's camera."""
        return self.of[name].image_topic or f"{name}/image"

    def _tenant(self, name: str) -> Tenant:
        asks = self.of[name]
        return Tenant(
            name,
            model=asks.model,
            weights=asks.weights,
            deadline_s=asks.deadline_ms / 1e3,
            priority=asks.priority,
            when_late=LatePolicy(asks.when_late),
        )
