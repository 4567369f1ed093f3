"""Settings of the stages that may change while frames flow."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from split_infer_ros.buffers.policy import AUTO, POLICIES
from split_infer_ros.setting import COMPUTING, MEGABYTES, MILLISECONDS, setting
from split_infer_ros.weight_streaming.settings import WeightsSettings


class DropPolicy(enum.Enum):
    """What happens when frames come faster than they are processed.

    - ``LATEST``: newer frames replace frames that wait. Each camera keeps its newest frame. This suits live cameras.
    - ``BLOCK``: the senders are made to wait. This suits recordings.
    """

    LATEST = "latest"
    BLOCK = "block"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings(WeightsSettings):
    """How frames are batched, where the model is split, and where the backbone's weights are.

    Names end with the unit. Infinite bytes mean no limit.

    Attributes:
        lane_limit: how many times as long a batch may take if a CPU computes two batches side by side, while they come
            fast. More batches are then served a second, but each takes longer. With 1, they are not computed so.

    Raises:
        ConfigurationError: a value is not accepted.
    """

    split_point: str = setting(
        "default",
        "The block after which the model is split. default: the one that tuning found, or else the model's own. auto: "
        "the one that is best for objective; see improve.",
    )
    batch_size: int = setting(
        1,
        "Frames in a batch. 0: one, or the best number that tuning or split_point auto found.",
        minimum=0,
        maximum=256,
    )
    batch_timeout_s: float = setting(
        0.05,
        "How long the oldest frame waits for others before a smaller batch is processed, in milliseconds. It waits for "
        "none if batch_size is 0.",
        minimum=0.0,
        maximum=60.0,
        unit=MILLISECONDS,
    )
    drop_policy: DropPolicy = setting(
        DropPolicy.LATEST,
        "What happens when frames come too fast. latest: newer frames replace waiting ones, for live cameras. Of each "
        "camera, at least the newest frame waits. block: senders wait, for recordings.",
    )
    pool_slots: int = setting(
        4,
        "The most batches in flight. Each holds a slot until its results are published.",
        minimum=1,
        maximum=64,
    )
    memory_policy: str = setting(
        AUTO,
        "Where features and staging buffers are stored: device (copied to the host), managed (pages move to where they "
        "are used), pinned (the GPU accesses the host's memory), or auto. On a GPU that shares the CPU's memory, "
        "policies other than auto also cover weights and activations. Without a GPU, all are plain memory.",
        choices=(*(policy.value for policy in POLICIES), AUTO),
        purpose=COMPUTING,
    )
    memory_budget_bytes: float = setting(
        math.inf,
        "The most memory for features and staging buffers. Settings that need more are refused. 0: no limit.",
        minimum=0.0,
        maximum=1e12,
        unit=MEGABYTES,
        purpose=COMPUTING,
    )
    cuda_graphs: bool = setting(
        True,
        "On a GPU: whether the backbone runs as a CUDA graph, which is recorded for each batch size before serving.",
    )
    backbone_cores: str = setting(
        "",
        "The cores on which the backbone's threads run, those of its engine included, such as 0-3,6. Empty: all that "
        "the process may use.",
        read_only=True,
        purpose=COMPUTING,
    )
    max_temperature_c: float = setting(
        0.0,
        "Above this temperature of the CPU or the GPU, ways to run the model are preferred that need less time of that "
        "processor, until it is 5 degrees cooler; see improve. They never serve fewer frames. 0: no limit.",
        minimum=0.0,
        maximum=150.0,
        purpose=COMPUTING,
    )
    lane_limit: float = 1.0
