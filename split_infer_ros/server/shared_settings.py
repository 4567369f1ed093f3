"""The settings that all tenants of one process share."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from split_infer_ros.buffers.policy import AUTO
from split_infer_ros.engines.engine import AUTO as AUTO_ENGINE
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server.schedule.scheduler import Rules
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.weight_streaming.residency import Residency

LIVE = ("window", "max_batch_size", "max_waiting", "pool_slots", "memory_policy", "memory_budget_bytes")
"""Settings that may change while models are loaded."""


@dataclass(frozen=True, slots=True)
class SharedSettings:
    """How requests are combined, and which resources the models use.

    Attributes:
        window: how many requests at the head of the queue one decision looks at (the paper's 5); live.
        max_batch_size: how many images one model's batch may have; live.
        max_waiting: how many frames of one tenant may wait. With one more, the tenant's oldest is dropped; live.
        split_point: of every model: ``default`` (its own), ``output`` or ``input``.
        pool_slots: how many batches of each model may be between the decision and their results; live.
        memory_policy: the memory of features and staging: ``device``, ``managed``, ``pinned`` or ``auto``; live.
            ``auto`` is the best policy for each model alone. For co-run batches on a GPU it follows §IV-B.
        memory_budget_bytes: the memory that features and staging of all models may take together; live.
        cuda_graphs: whether a GPU launches an execution as one recorded graph.
        graph_bytes: the GPU memory that recorded graphs may keep.
        head_threads: how many threads each model's head may use. 0 means one, or all cores if the backbones are on a
            GPU.
        device: where backbones run, as for ``load_model``.
        engine: what executes the models: ``auto``, or a name that ``parse_engine`` reads. ``auto`` is the engine that
            runs a model as it came. On a GPU, heads run on torch.
        precision: in which the models run, as ``parse_precision`` reads it. On a GPU, heads run in fp32.
        weights_budget_bytes: the size of the ring buffer through which the weights of all models are streamed. Models
            then run one after the other, on the CPU in fp32. 0 keeps the weights resident.
        allow_user_code: whether users' own models may be loaded, which may run any code.

    Raises:
        ConfigurationError: a number is below 1.
    """

    window: int = 5
    max_batch_size: int = 8
    max_waiting: int = 2
    split_point: str = "default"
    pool_slots: int = 2
    memory_policy: str = AUTO
    memory_budget_bytes: float = math.inf
    cuda_graphs: bool = True
    graph_bytes: int = 2**30
    head_threads: int = 0
    device: str = "auto"
    engine: str = AUTO_ENGINE
    precision: str = Precision.FP32.value
    weights_budget_bytes: float = 0.0
    allow_user_code: bool = False

    def __post_init__(self) -> None:
        for name in ("window", "max_batch_size", "max_waiting", "pool_slots"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it takes 1 or more.")

    @property
    def rules(self) -> Rules:
        """The scheduler's rules. Models whose weights are streamed run one after the other, so they are not fused."""
        return Rules(self.window, self.max_batch_size, fuse=not self.weights_budget_bytes)

    @property
    def largest_batch(self) -> int:
        """The most images of one model that an execution can have. A decision looks at one window of requests."""
        return min(self.window, self.max_batch_size)

    @property
    def stage(self) -> StageSettings:
        """The settings of each model's slots and staging.

        They record no CUDA graphs: graphs are recorded for several models at once, and elsewhere.
        """
        return StageSettings(
            split_point=self.split_point,
            batch_size=self.max_batch_size,
            batch_timeout_s=0.0,
            pool_slots=self.pool_slots,
            memory_policy=self.memory_policy,
            memory_budget_bytes=self.memory_budget_bytes,
            cuda_graphs=False,
            weights_residency=Residency.ASYNCHRONOUS if self.weights_budget_bytes else Residency.RESIDENT,
            weights_budget_bytes=self.weights_budget_bytes or math.inf,
        )

    def check_change(self, new: SharedSettings) -> None:
        """Checks that only live settings change.

        Raises:
            ConfigurationError: others change; it names them.
        """
        fixed = [
            field.name
            for field in fields(self)
            if field.name not in LIVE and getattr(self, field.name) != getattr(new, field.name)
        ]
        if fixed:
            raise ConfigurationError(
                f"{', '.join(fixed)} cannot change while models are loaded; these can: {', '.join(LIVE)}."
            )
