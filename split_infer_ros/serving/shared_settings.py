"""What all tenants of one process share."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from split_infer_ros.buffers.policy import AUTO
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.serving.scheduler import Rules
from split_infer_ros.weight_streaming.residency import Residency

LIVE = ("window", "most", "waiting", "pool_slots", "memory_policy", "memory_budget_bytes")  # may change meanwhile


@dataclass(frozen=True, slots=True)
class SharedSettings:
    """How requests are put together, and what models run on and in.

    Attributes:
        window: requests at the head of the queue that are looked at for one decision (the paper's 5); live.
        most: of one model's batch (the parameter ``batch_size``); live.
        waiting: frames of one tenant that may wait: one more and its own oldest gives way; live.
        split_point: of every model: ``default`` (its own), ``output`` or ``input``.
        pool_slots: of each model, batches between the decision and their results; live, as are the next two.
        memory_policy: what features and staging lie in: ``device``, ``managed``, ``pinned`` or ``auto``: the best
            for each model alone, and beside another model's batch on a GPU what §IV-B has for the two.
        memory_budget_bytes: which features and staging of all models may take together.
        cuda_graphs: on a GPU, launch an execution as one recorded graph.
        graph_bytes: of a GPU's memory, which recorded graphs may keep.
        head_threads: cores that each model's head may use; 0: one, or all where a GPU has the backbones.
        device, precision: where and in which backbones run, as ``load_model`` takes them.
        weights_budget_bytes: of the ring through which weights of all models are read as they run, one model after
            the other, on the CPU in fp32; 0: they stay resident.
        allow_user_code: whether models of the user's own may be loaded, which may run any code.

    Raises:
        ConfigurationError: a number is below 1.
    """

    window: int = 5
    most: int = 8
    waiting: int = 2
    split_point: str = "default"
    pool_slots: int = 2
    memory_policy: str = AUTO
    memory_budget_bytes: float = math.inf
    cuda_graphs: bool = True
    graph_bytes: int = 2**30
    head_threads: int = 0
    device: str = "auto"
    precision: str = "fp32"
    weights_budget_bytes: float = 0.0
    allow_user_code: bool = False

    def __post_init__(self) -> None:
        for name in ("window", "most", "waiting", "pool_slots"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it takes 1 or more.")

    @property
    def rules(self) -> Rules:
        """For the scheduler."""
        return Rules(self.window, self.most, fuse=not self.weights_budget_bytes)

    @property
    def stage(self) -> StageSettings:
        """Of each model's slots and staging; its graphs are recorded for several models at once, not here."""
        return StageSettings(
            split_point=self.split_point,
            batch_size=self.most,
            batch_timeout_s=0.0,
            pool_slots=self.pool_slots,
            memory_policy=self.memory_policy,
            memory_budget_bytes=self.memory_budget_bytes,
            cuda_graphs=False,
            weights_residency=Residency.ASYNCHRONOUS if self.weights_budget_bytes else Residency.RESIDENT,
            weights_budget_bytes=self.weights_budget_bytes or math.inf,
        )

    def check_change(self, to: SharedSettings) -> None:
        """Only what is live may change.

        Raises:
            ConfigurationError: something else did; it is named.
        """
        fixed = [
            field.name
            for field in fields(self)
            if field.name not in LIVE and getattr(self, field.name) != getattr(to, field.name)
        ]
        if fixed:
            raise ConfigurationError(
                f"{', '.join(fixed)} cannot change while models are loaded; these can: {', '.join(LIVE)}."
            )
