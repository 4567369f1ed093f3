"""The settings of a server: how frames are combined, and which resources the models use."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from split_infer_ros.engines.engine import AUTO as AUTO_ENGINE
from split_infer_ros.engines.precision import AUTO as AUTO_PRECISION
from split_infer_ros.engines.precision import PRECISION_CHOICES
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server.improving.improve import Improve
from split_infer_ros.server.schedule.scheduler import Rules
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.setting import COMPUTING, MEGABYTES, like, setting, settings_of
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.planner import Goal
from split_infer_ros.weight_streaming.residency import Residency


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSettings(StageSettings):
    """The settings that all tenants of one server share. They include the settings of each model's stage.

    Attributes:
        goal: what split point ``auto`` optimises, for each model on its own.
        graph_bytes: the most bytes of GPU memory for recorded executions. With 0, each model records its own batches.
        measures: whether costs of executions are measured between frames. If not, executions are chosen by rules that
            need no costs.

    Raises:
        ConfigurationError: a value is not accepted.
    """

    window: int = setting(
        5, "How many waiting images the scheduler considers for one execution.", minimum=1, maximum=1000
    )
    batch_size: int = like(
        StageSettings,
        "batch_size",
        default=8,
        description="The most images of one model in a batch.",
        minimum=1,
        name="max_batch_size",
    )
    max_waiting: int = setting(
        1,
        "The most waiting images of one tenant. When one more comes, the oldest image of one of its cameras is "
        "dropped. The newest image of each camera stays.",
        minimum=1,
        maximum=1000,
    )
    batch_timeout_s: float = like(StageSettings, "batch_timeout_s", default=0.0)
    drop_policy: DropPolicy = like(
        StageSettings,
        "drop_policy",
        description="What happens when a tenant has more waiting images than max_waiting. latest: its newer images "
        "replace older ones, for live cameras. block: senders wait, for recordings.",
    )
    split_point: str = like(
        StageSettings,
        "split_point",
        description="Where each model is split: at its own default (or the one that tuning found), after its last "
        "block (output), before its first (input), or after the block of this name. auto: where each model measures "
        "best.",
    )
    pool_slots: int = like(
        StageSettings, "pool_slots", default=2, description="The most batches in flight of each model."
    )
    lane_limit: float = math.inf
    goal: Goal = field(default_factory=Goal)
    cuda_graphs: bool = like(
        StageSettings,
        "cuda_graphs",
        description="On a GPU: whether executions run as CUDA graphs, which are recorded before.",
    )
    graph_bytes: int = setting(
        10**9,
        "The most GPU memory that recorded graphs may keep.",
        minimum=0,
        maximum=10**12,
        unit=MEGABYTES,
        name="graph_memory_mb",
        read_only=True,
    )
    weights_residency: Residency = like(
        StageSettings,
        "weights_residency",
        description="Where the weights of the backbones are: resident in memory. On a CPU also streamed in turn "
        "through one ring buffer of weights_budget_mb: asynchronous (each model uses the whole ring), two_stage (as "
        "little of it as possible) or synchronous (two buffers in lockstep).",
    )
    weights_budget_bytes: float = like(
        StageSettings,
        "weights_budget_bytes",
        description="The memory of the ring buffer for streamed weights, which all models share. Streaming needs it.",
    )
    device: str = like(ModelSpec, "device", read_only=True)
    engine: str = setting(
        AUTO_ENGINE,
        "What executes the models, backbones and heads: auto, torch, onnxruntime, openvino, onnxruntime:PROVIDER or "
        "openvino:DEVICE. auto: the fastest one that is known; see improve.",
        read_only=True,
        purpose=COMPUTING,
    )
    improve: Improve = setting(
        Improve.BACKGROUND,
        "When engine auto and split_point auto measure a model that this machine has not measured. background: the "
        "model serves at once, and faster engines and better split points are found while frames flow. before_start: "
        "before the first frame. never: not at all.",
        choices=tuple(Improve),
        read_only=True,
        purpose=COMPUTING,
    )
    precision: str = setting(
        AUTO_PRECISION,
        "The precision in which the backbone computes. auto: fp32 at first, then the fastest 16-bit precision whose "
        "detections agree with those in fp32 on live frames. auto_int8: int8, too. One that the engine or processor "
        "does not support is refused. With bf16 or fp32 (and the like), fp32 is then used instead.",
        choices=PRECISION_CHOICES,
        read_only=True,
        purpose=COMPUTING,
    )
    min_agreement: float = setting(
        0.0,
        "With precision auto: how much detections must agree with those in fp32 (mAP with the detections in fp32 as "
        "the truth). 0: 0.99 in 16 bits and 0.97 in int8.",
        minimum=0.0,
        maximum=1.0,
        read_only=True,
        purpose=COMPUTING,
    )
    allow_user_code: bool = like(ModelSpec, "allow_user_code", read_only=True)
    head_threads: int = setting(
        0,
        "How many threads compute the head. 0: one for each core of head_cores. Without them, as many as there are "
        "cores if the machine has a GPU, otherwise the number that tuning found, or one. If the backbone of the node "
        "head runs on the CPU of a machine with a GPU, set 1.",
        minimum=0,
        maximum=1024,
        read_only=True,
        purpose="Detections",
    )
    head_cores: str = setting(
        "",
        "The cores on which the head's threads run, those of its engine included, such as 4-5. Empty: all that the "
        "process may use.",
        read_only=True,
        purpose="Detections",
    )
    measures: bool = True

    @classmethod
    def of_stage(cls, stage: StageSettings) -> SharedSettings:
        """Returns the settings of a server of one model, from those of its stage.

        Such a server measures no costs. It uses rules that need no costs.
        """
        given = {field.name: getattr(stage, field.name) for field in fields(StageSettings)}
        size = stage.batch_size
        return cls(**given, window=size, max_waiting=size, graph_bytes=0, measures=False)

    @property
    def shares_ring(self) -> bool:
        """Whether the weights of all models are streamed through one ring buffer."""
        return self.measures and self.weights_residency is not Residency.RESIDENT

    @property
    def rules(self) -> Rules:
        """The scheduler's rules. Models whose weights are streamed run one after the other, so they are not fused.

        If costs are measured, no batch runs on a CPU before they show that it pays: an engine may have to compile it.
        """
        fuse = self.weights_residency is Residency.RESIDENT
        timeout_s, measures = self.batch_timeout_s, self.measures
        return Rules(self.window, self.batch_size, fuse=fuse, timeout_s=timeout_s, merge_unknown=not measures)

    @property
    def largest_batch(self) -> int:
        """The most images of one model that an execution can have. A decision looks at one window of requests."""
        return min(self.window, self.batch_size)

    @property
    def stage(self) -> StageSettings:
        """The settings of the plan of each model.

        The slots have room for the largest batch. Models record no CUDA graphs of their own if the server records
        graphs for several models at once.
        """
        given = {field.name: getattr(self, field.name) for field in fields(StageSettings)}
        given |= {"batch_size": self.largest_batch, "cuda_graphs": self.cuda_graphs and not self.graph_bytes}
        return StageSettings(**given)

    def check_change(self, new: SharedSettings) -> None:
        """Checks that no read-only setting changes.

        Raises:
            ConfigurationError: read-only settings change. The message names them.
        """
        fixed = [*(name for name, found in settings_of(self).items() if found.read_only), "measures"]
        changed = [name for name in fixed if getattr(self, name) != getattr(new, name)]
        if changed:
            raise ConfigurationError(f"{', '.join(changed)} cannot change while models are loaded.")
