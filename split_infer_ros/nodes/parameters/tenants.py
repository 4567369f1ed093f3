"""The parameters of the node ``tenants``: some for each tenant, and some that all tenants share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from split_infer_ros.engines.engine import check_engine
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.detections import Limits
from split_infer_ros.models.takes import Takes
from split_infer_ros.nodes.parameters.backbone import BackboneParameters
from split_infer_ros.nodes.parameters.common import LoadParameters, TraceParameters
from split_infer_ros.nodes.parameters.images import ImageParameters
from split_infer_ros.nodes.parameters.table import family, part
from split_infer_ros.nodes.transports import INTRA_PROCESS
from split_infer_ros.runtime.cores import StageCores
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant, check_unique_names
from split_infer_ros.setting import like, setting
from split_infer_ros.split.planner import Goal
from split_infer_ros.weight_streaming.residency import Residency

SHARED_RESIDENCIES = tuple(residency for residency in Residency if residency is not Residency.AUTO)
TENANTS = "tenants"
TENANT = "tenant"  # a tenant's parameters are called tenant.NAME.PARAMETER


@dataclass(frozen=True)
class TenantParameters:
    """The parameters of one tenant."""

    image_topic: str = setting("", "The image topic of its camera. Empty: NAME/image.")
    points_topic: str = setting("", "The topic of its point clouds, for a task that takes these. Empty: NAME/points.")
    tenant: Tenant = part(Tenant(name=""))


@dataclass(frozen=True)
class TenantsParameters(LoadParameters, TraceParameters, ImageParameters):
    """The parameters of the node ``tenants``.

    Raises:
        ConfigurationError: the engine is unknown, the process may not use one of the cores, or a tenant's name is not
            allowed or listed twice.
    """

    PURPOSE: ClassVar[str] = "Tenants and their batches"

    tenants: tuple[str, ...] = setting((), "The names of the tenants that run. Their own parameters are tenant.NAME.*.")
    of: Mapping[str, TenantParameters] = family(TENANTS, TENANT, TenantParameters)
    shared: SharedSettings = part(
        SharedSettings(),
        without=("weights_delay_s", "weights_delay_share", "weights_file"),
        cuda_graphs={"read_only": True},
        weights_residency={"read_only": True, "choices": SHARED_RESIDENCIES},
        weights_budget_bytes={"read_only": True},
    )
    goal: Goal = part(
        Goal(),
        objective={
            "description": "What split_point auto optimises for each model: throughput, latency, or balanced (the most "
            "images a second for at most 1.2 times the lowest latency)."
        },
    )
    transport: str = like(
        BackboneParameters,
        "transport",
        description="How features go to the heads: intra_process (one head for each model, in this process), "
        "shared_memory or network (to a node head for each tenant in the namespace NAME, on this host or another).",
    )
    limits: Limits = part(Limits())

    def __post_init__(self) -> None:
        check_engine(self.shared.engine)
        StageCores.parse(self.shared.backbone_cores, self.shared.head_cores)
        if "" in self.tenants:
            raise ConfigurationError("A tenant cannot be named ''; it takes letters and digits, with a letter first.")
        declared = {name: self._tenant(name) for name in self.of}
        check_unique_names([declared[name] for name in self.tenants if name in declared])

    @property
    def wanted(self) -> list[Tenant]:
        """The tenants that should run: those that the parameter ``tenants`` lists."""
        return [self._tenant(name) for name in self.tenants]

    @property
    def has_own_heads(self) -> bool:
        """Whether each tenant has its own head in another process."""
        return self.transport != INTRA_PROCESS

    @property
    def settings(self) -> SharedSettings:
        """The settings that all tenants share."""
        return replace(self.shared, goal=self.goal)

    def topic(self, name: str, takes: Takes) -> str:
        """Returns the topic of a tenant's camera, or of its point clouds."""
        if takes is Takes.POINTS:
            return self.of[name].points_topic or f"{name}/points"
        return self.of[name].image_topic or f"{name}/image"

    def _tenant(self, name: str) -> Tenant:
        return replace(self.of[name].tenant, name=name, own_head=self.has_own_heads)
