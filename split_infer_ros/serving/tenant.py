"""A tenant: one camera and the model that it wants looked at with."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.serving.request import DROP, FINISH

WHEN_LATE = (FINISH, DROP)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")  # what may be a part of a topic and of a parameter


@dataclass(frozen=True, slots=True)
class Tenant:
    """What one tenant asks for.

    Attributes:
        name: letters, digits and underscores, with a letter in front.
        model: which runs for it, as ``load_model`` takes it; tenants on one model share it.
        weights: of the model; tenants on one model with other weights have another model.
        deadline_s: seconds from a frame's arrival until its detections' backbone should be done. 0: frames have their
            turn as if that were the model's execution time, the paper's default, and as none could meet that, none is
            late.
        priority: one more partitions the time in which a frame has its turn; 0 is usual, negative ones wait.
        when_late: of a frame that can no longer meet its deadline: ``finish`` it late, or ``drop`` it.

    Raises:
        ConfigurationError: a value that cannot be.
    """

    name: str
    model: str
    weights: str = "default"
    deadline_s: float = 0.0
    priority: int = 0
    when_late: str = FINISH

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"A tenant cannot be named '{self.name}'; it takes letters and digits, a letter in front, and single "
                "underscores in between."
            )
        if not 0.0 <= self.deadline_s < math.inf:
            raise ConfigurationError(f"Tenant {self.name} has a deadline of {self.deadline_s} s; it takes 0 or more.")
        if not -MOST_PRIORITY <= self.priority <= MOST_PRIORITY:
            raise ConfigurationError(
                f"Tenant {self.name} has priority {self.priority}; it takes {-MOST_PRIORITY} to {MOST_PRIORITY}."
            )
        if self.when_late not in WHEN_LATE:
            raise ConfigurationError(
                f"Tenant {self.name} has when_late '{self.when_late}'; it takes one of: {', '.join(WHEN_LATE)}."
            )

    @property
    def model_key(self) -> str:
        """The same for tenants that share a model, and no other's."""
        return self.model if self.weights == "default" else f"{self.model} with weights {self.weights}"


MOST_PRIORITY = 16  # a step partitions or doubles: beyond this the patience of a second is 15 us or a day


def check_names(tenants: Sequence[Tenant]) -> None:
    """No name may be there twice.

    Raises:
        ConfigurationError: one is.
    """
    twice = [name for name, count in Counter(tenant.name for tenant in tenants).items() if count > 1]
    if twice:
        raise ConfigurationError(f"Tenants are listed twice: {', '.join(twice)}; each name is for one of them.")
