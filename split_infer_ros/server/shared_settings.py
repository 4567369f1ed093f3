"""The settings of a server: how frames are combined, and which resources the models use."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from split_infer_ros.engines.engine import AUTO as AUTO_ENGINE
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server.schedule.scheduler import Rules
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.planner import Goal
from split_infer_ros.weight_streaming.residency import Residency

FIXED = ("device", "engine", "precision", "allow_user_code", "head_threads", "graph_bytes", "measures")
"""Settings that cannot change while models are loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSettings(StageSettings):
    """The settings that all tenants of one server share: those of each model's stage, and these.

    Attributes:
        goal: what split point ``auto`` looks for, for each model on its own.
        window: how many requests at the head of the queue one decision looks at (the paper's 5).
        max_waiting: how many frames of one tenant may wait. With one more, the tenant's oldest is dropped, or senders
            wait, as ``drop_policy`` says.
        graph_bytes: the GPU memory that recorded executions of several models may keep. With 0, each model records its
            own batches.
        head_threads: how many threads each model's head may use. 0 means one, or all cores if the backbones are on a
            GPU.
        device: where backbones run, as for ``load_model``.
        engine: what executes the models: ``auto``, or a name that ``parse_engine`` reads.
        precision: in which the models run, as ``parse_precision`` reads it.
        allow_user_code: whether users' own models may be loaded, which may run any code.
        measures: whether costs of executions are measured between frames. If not, the schedule serves by rule.

    Raises:
        ConfigurationError: a number is below 1.
    """

    batch_size: int = 8
    batch_timeout_s: float = 0.0
    pool_slots: int = 2
    lanes: bool = True
    goal: Goal = field(default_factory=Goal)
    window: int = 5
    max_waiting: int = 2
    graph_bytes: int = 2**30
    head_threads: int = 0
    device: str = "auto"
    engine: str = AUTO_ENGINE
    precision: str = Precision.FP32.value
    allow_user_code: bool = False
    measures: bool = True

    def __post_init__(self) -> None:
        for name in ("window", "batch_size", "max_waiting", "pool_slots"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it takes 1 or more.")

    @classmethod
    def of_stage(cls, stage: StageSettings) -> SharedSettings:
        """Returns the settings of a server of one model, whose batches and lanes follow rules."""
        given = {field.name: getattr(stage, field.name) for field in fields(StageSettings)}
        size = stage.batch_size
        return cls(**given, window=size, max_waiting=size, graph_bytes=0, measures=False)

    @property
    def shares_ring(self) -> bool:
        """Whether the weights of all models are streamed through one ring buffer."""
        return self.measures and self.weights_residency is not Residency.RESIDENT

    @property
    def rules(self) -> Rules:
        """The scheduler's rules. Models whose weights are streamed run one after the other, so they are not fused."""
        fuse = self.weights_residency is Residency.RESIDENT
        return Rules(self.window, self.batch_size, fuse=fuse, timeout_s=self.batch_timeout_s)

    @property
    def largest_batch(self) -> int:
        """The most images of one model that an execution can have. A decision looks at one window of requests."""
        return min(self.window, self.batch_size)

    @property
    def stage(self) -> StageSettings:
        """The settings of each model's slots and staging.

        They have room for the largest batch, and record no CUDA graphs if graphs are recorded for several models at
        once.
        """
        given = {field.name: getattr(self, field.name) for field in fields(StageSettings)}
        given |= {"batch_size": self.largest_batch, "cuda_graphs": self.cuda_graphs and not self.graph_bytes}
        return StageSettings(**given)

    def check_change(self, new: SharedSettings) -> None:
        """Checks that only settings change which may.

        Raises:
            ConfigurationError: others change; it names them.
        """
        fixed = [name for name in FIXED if getattr(self, name) != getattr(new, name)]
        if fixed:
            raise ConfigurationError(f"{', '.join(fixed)} cannot change while models are loaded.")
