"""A pipeline on the simulated GPU whose results identify their frames."""

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
    """Returns a model whose backbone is on the GPU, and whose score is the brightness of the frame that it saw."""
    return SplitModel(TorchNetwork(BrightModel("bright").entry, Brightness(1))).placed(GPU)


class BrightRun:
    """Feeds frames and compares each result with its own frame.

    Args:
        settings: of the pipeline.
        model: a new one if None. Two threads must not create models at the same time, because torch.fx cannot do that.
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
        """Feeds frames of that size. Each is brighter than the one before, or black again."""
        values = [(11 * (len(self._sent) + index)) % 250 for index in range(count)]
        self._sent += values
        self.pipeline.feed([frame(value, "", height, width)[0] for value in values])

    def check(self) -> None:
        """Waits for all frames and checks that each result is of its own frame."""
        self.pipeline.finish()
        assert self.found == dict(enumerate(self._sent))
