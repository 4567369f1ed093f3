"""A tenant: one camera, and the model that looks at its images."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.onnx_options import OnnxOptions
from split_infer_ros.server.schedule.request import LatePolicy

MAX_PRIORITY = 16  # each step halves or doubles: beyond this, a patience of one second is 15 us or 18 hours

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")  # may be a part of topics and of parameters


@dataclass(frozen=True, slots=True)
class Tenant:
    """What one tenant asks for.

    Attributes:
        name: letters, digits and single underscores; begins with a letter. It is empty for the only tenant of a
            server of one model.
        model: the model that runs for it, named as for ``load_model``. Tenants with the same model share it.
        weights: of the model. Tenants share a model only if they use the same weights.
        deadline_s: seconds from a frame's arrival until its backbone should be done. With 0, no frame is late. Frames
            are then ordered as if the deadline were the model's execution time, the paper's default.
        priority: each step halves the patience by which frames are ordered; 0 is usual, and negative ones wait longer.
        when_late: whether a frame that can no longer meet its deadline is finished late or dropped.
        onnx_options: what is said about an ONNX file. Tenants share a model only if they say the same.
        own_head: its head is in another process, and takes the batches of no other tenant. It then shares its model's
            weights with other tenants, but no slots and no batches.

    Raises:
        ConfigurationError: a value is not allowed.
    """

    name: str
    model: str
    weights: str = "default"
    deadline_s: float = 0.0
    priority: int = 0
    when_late: LatePolicy = LatePolicy.FINISH
    onnx_options: OnnxOptions = field(default_factory=OnnxOptions)
    own_head: bool = False

    def __post_init__(self) -> None:
        if self.name and not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"A tenant cannot be named '{self.name}'; it takes letters and digits, with a letter in front, and "
                "single underscores in between."
            )
        if not 0.0 <= self.deadline_s < math.inf:
            raise ConfigurationError(f"Tenant {self.name} has a deadline of {self.deadline_s} s; it takes 0 or more.")
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise ConfigurationError(
                f"Tenant {self.name} has priority {self.priority}; it takes {-MAX_PRIORITY} to {MAX_PRIORITY}."
            )
        if self.when_late not in tuple(LatePolicy):
            allowed = ", ".join(policy.value for policy in LatePolicy)
            raise ConfigurationError(
                f"Tenant {self.name} has when_late '{self.when_late}'; it takes one of: {allowed}."
            )

    @property
    def model_key(self) -> str:
        """The key of the tenant's model; tenants that share a model and its batches have the same key."""
        said = [] if self.weights == "default" else [f"weights {self.weights}"]
        said += [f"{name} {getattr(self.onnx_options, name)}" for name in self.onnx_options.given]
        key = f"{self.model} with {', '.join(said)}" if said else self.model
        return f"{key} for {self.name}" if self.own_head else key


def check_unique_names(tenants: Sequence[Tenant]) -> None:
    """Checks that no two tenants have the same name.

    Raises:
        ConfigurationError: some have; it names them.
    """
    duplicates = [name for name, count in Counter(tenant.name for tenant in tenants).items() if count > 1]
    if duplicates:
        raise ConfigurationError(f"Tenants are listed twice: {', '.join(duplicates)}; each name is for one of them.")
