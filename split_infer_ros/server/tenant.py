"""A tenant: a camera (or several), and the model, deadline and priority with which its images are processed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.onnx_options import OnnxOptions
from split_infer_ros.models.user_names import CLUSTERS
from split_infer_ros.point_clouds.settings import ClusterSettings
from split_infer_ros.server.schedule.request import LatePolicy
from split_infer_ros.setting import MILLISECONDS, check_settings, like, setting
from split_infer_ros.split.model_spec import ModelSpec

MAX_PRIORITY = 16  # each step halves or doubles the patience: 16 steps turn one second into 15 us or 18 hours

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")  # names that can be part of topics and parameters


@dataclass(frozen=True, slots=True)
class Tenant:
    """What one tenant asks for.

    Its frames are images, or the point clouds of a LIDAR if its model is a task that takes those.

    Attributes:
        name: letters, digits and single underscores; begins with a letter. The only tenant of a server of one model
            has an empty name.
        model: the model that runs for the tenant. Tenants share a model if they name the same one, with the same
            weights and the same ``onnx_options``.
        deadline_s: the deadline in seconds. With 0, no frame is late, and frames are ordered as if the deadline were
            the model's execution time, the paper's default.
        onnx_options: what the user says about an ONNX file.
        clustering: what counts as a cluster, for ``task:clusters``.
        own_head: whether the tenant has its own head in another process, which takes no other tenant's batches. The
            tenant then shares its model's weights with other tenants, but not slots and batches.

    Raises:
        ConfigurationError: a value is not allowed.
    """

    name: str
    model: str = like(
        ModelSpec,
        "name",
        description="The model for its images: a name of the catalogue, timm:NAME, FILE.onnx, package.module:factory "
        "or FILE.pt2. Or a task: task:clusters finds objects in point clouds, task:package.module:factory is your own.",
    )
    weights: str = like(ModelSpec, "weights")
    onnx_options: OnnxOptions = field(default_factory=OnnxOptions)
    clustering: ClusterSettings = field(default_factory=ClusterSettings)
    deadline_s: float = setting(
        0.0,
        "How soon after an image's arrival the backbone should be done with it, in milliseconds. 0: no deadline. The "
        "model's execution time then decides the order.",
        minimum=0.0,
        maximum=60.0,
        unit=MILLISECONDS,
    )
    priority: int = setting(
        0,
        "Each step up halves the time within which its images are processed.",
        minimum=-MAX_PRIORITY,
        maximum=MAX_PRIORITY,
    )
    when_late: LatePolicy = setting(
        LatePolicy.FINISH,
        "What happens to an image that cannot meet its deadline. finish: it is processed. drop: it is dropped as "
        "deadline.",
    )
    own_head: bool = False

    def __post_init__(self) -> None:
        if self.name and not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"A tenant cannot be named '{self.name}'; it takes letters and digits, with a letter in front, and "
                "single underscores in between."
            )
        check_settings(self, f"tenant.{self.name}.")
        if self.clustering.given and self.model != CLUSTERS:
            raise ConfigurationError(
                f"tenant.{self.name}: {', '.join(self.clustering.given)} can only be set for {CLUSTERS}, and the model "
                f"is {self.model}."
            )

    @property
    def model_key(self) -> str:
        """The key of the tenant's model. Tenants that share a model and its batches have the same key."""
        said = [] if self.weights == "default" else [f"weights {self.weights}"]
        said += [f"{name} {getattr(self.onnx_options, name)}" for name in self.onnx_options.given]
        said += [f"{name} {getattr(self.clustering, name)}" for name in self.clustering.given]
        key = f"{self.model} with {', '.join(said)}" if said else self.model
        return f"{key} for {self.name}" if self.own_head else key


def check_unique_names(tenants: Sequence[Tenant]) -> None:
    """Checks that no two tenants have the same name.

    Raises:
        ConfigurationError: some tenants have the same name. The message names them.
    """
    duplicates = [name for name, count in Counter(tenant.name for tenant in tenants).items() if count > 1]
    if duplicates:
        raise ConfigurationError(f"Tenants are listed twice: {', '.join(duplicates)}; each name is for one of them.")
