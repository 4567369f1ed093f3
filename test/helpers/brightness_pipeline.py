"""A pipeline on the simulated GPU, with a model whose results identify their frames."""

from __future__ import annotations

from types import TracebackType

import torch
from brightness_models import BrightModel, Brightness, frame

from split_infer_ros.models.detections import Detections
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork

GPU = torch.device("cuda", 0)
SETTINGS = StageSettings(
    split_point="parts.0", batch_size=2, batch_timeout_s=0.002, drop_policy=DropPolicy.BLOCK, memory_policy="device"
)  # measuring it takes long


def bright_model() -> SplitModel:
    """Returns a model with its backbone on the GPU. The score of a result is the brightness of the frame."""
    return SplitModel(TorchNetwork(BrightModel("bright").entry, Brightness(1))).placed(GPU)


class BrightRun:
    """Feeds frames to a pipeline, and compares each result with its own frame.

    Args:
        settings: the settings of the pipeline.
        model: the model; None makes a new one. Two threads must not make models at the same time, because torch.fx
            cannot do that.

    Attributes:
        found: the brightness that each result tells, by the number of the frame.
        pipeline: the pipeline.
    """

    def __init__(self, settings: StageSettings = SETTINGS, model: SplitModel | None = None) -> None:
        self.found: dict[int, int] = {}
        self._sent: list[int] = []
        self.pipeline = LocalPipeline(model or bright_model(), settings, self._deliver)

    def __enter__(self) -> BrightRun:
        self.pipeline.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pipeline.__exit__(kind, error, trace)

    def _deliver(self, origin: Origin, detections: Detections) -> None:
        self.found[origin.header] = round(detections.scores.item() * 255)

    def feed(self, count: int, height: int = 4, width: int = 4) -> None:
        """Feeds ``count`` frames. Each is brighter than the frame before; after the brightest comes a dark one."""
        values = [(11 * (len(self._sent) + index)) % 250 for index in range(count)]
        self._sent += values
        self.pipeline.feed([frame(value, "", height, width)[0] for value in values])

    def check(self) -> None:
        """Waits for all frames, and checks that each result tells the brightness of its own frame."""
        self.pipeline.finish()
        assert self.found == dict(enumerate(self._sent))
