"""The parameters of the node ``backbone``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from split_infer_ros.nodes.parameters.common import ModelParameters, TraceParameters
from split_infer_ros.nodes.parameters.images import ImageParameters
from split_infer_ros.nodes.parameters.table import part
from split_infer_ros.nodes.transports import INTRA_PROCESS, SENDERS
from split_infer_ros.runtime.cores import StageCores
from split_infer_ros.server.improving.improve import Improve
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.setting import COMPUTING, like, setting
from split_infer_ros.split.planner import Goal


@dataclass(frozen=True)
class BackboneParameters(ModelParameters, TraceParameters, ImageParameters):
    """The parameters of the node ``backbone``.

    Raises:
        ConfigurationError: the engine is unknown, or the process may not use one of the cores.
    """

    PURPOSE: ClassVar[str] = "Split point, batches and features"

    engine: str = like(
        SharedSettings,
        "engine",
        description="What executes the backbone: auto, torch, onnxruntime, openvino, onnxruntime:PROVIDER for a "
        "provider of the installed ONNX Runtime, such as CUDA or TensorRT, or openvino:DEVICE for a device of "
        "OpenVINO, such as GPU or NPU. auto: the fastest one that is known; see improve.",
    )
    stage: StageSettings = part(StageSettings(batch_size=0))
    goal: Goal = part(Goal())
    head_cores: str = like(
        SharedSettings,
        "head_cores",
        description="The cores of the head if it runs in this process, so that split_point auto measures it there.",
        purpose=COMPUTING,
    )
    improve: Improve = like(SharedSettings, "improve")
    min_agreement: float = like(SharedSettings, "min_agreement")
    transport: str = setting(
        INTRA_PROCESS,
        "How features go to the head: intra_process, shared_memory (to another process on this host) or network (to "
        "another host).",
        choices=tuple(SENDERS),
        read_only=True,
    )
    image_topics: tuple[str, ...] = setting(
        ("image",), "The image topics of the cameras. Frames of all cameras share batches.", read_only=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        StageCores.parse(self.stage.backbone_cores, self.head_cores)  # before a node of this process loads a model

    @property
    def cores(self) -> StageCores:
        """The cores of each stage."""
        return StageCores.parse(self.stage.backbone_cores, self.head_cores)

    @property
    def settings(self) -> StageSettings:
        """The stage's settings, with the lanes that the objective allows.

        The split point may be ``default`` or ``auto``, and the batch size 0. Tuning or ``AutoSplit`` then decides.
        """
        return replace(self.stage, lane_limit=self.goal.objective.latency_limit)
