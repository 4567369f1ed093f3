"""Models that tell frames apart: the score is the brightness of the frame, and the label names the model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch
from lost_device import LostDevice
from torch import Tensor, nn

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.server.frame import Origin
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork

LONG_S = 60.0  # a bound, far above the time of any step here
BAD = 255  # the brightness of a frame on which a BrightModel fails, if it is asked to
CPU = torch.device("cpu")


class Brightness(nn.Module):
    """Maps images to the mean of red over the image, (N, 1). ``idle`` unused weights make models differ in size."""

    def __init__(self, idle: int) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(3, 3, 1), nn.AvgPool2d(4), nn.Flatten())
        nn.init.dirac_(self.parts[0].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.parts[0].bias)  # type: ignore[arg-type]
        self.idle = nn.Parameter(torch.zeros(idle))

    def forward(self, images: Tensor) -> Tensor:
        return self.parts(images)[:, :1] + 0 * self.idle.sum()  # type: ignore[no-any-return]


class BrightModel(SplitModel):
    """A model that can be made to fail or to wait.

    Args:
        name: the name of the model. Its only label is ``bright by NAME``.
        idle: the number of unused weights.
        backbone_fails, head_fails: whether the backbone or the head raises an error on a frame of brightness BAD.
        device: a device that each batch uses, also blank ones; None for a device that never fails.
        notes: what a user should know about the model.

    Attributes:
        gate: while it is not set, the backbone waits.
        batches: sizes of the batches that the backbone ran.
    """

    def __init__(
        self,
        name: str,
        idle: int = 1,
        backbone_fails: bool = False,
        head_fails: bool = False,
        device: LostDevice | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
            if head_fails and is_bad(outputs[0]):
                raise RuntimeError(f"the head of {name} fails")
            box = torch.tensor([[0.0, 0.0, 4.0, 4.0]])
            return [Detections(box, score.clone(), torch.zeros(1, dtype=torch.int64)) for score in outputs[0]]

        preprocess = Preprocess(4, 4, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
        entry = ModelEntry(
            name=name,
            summary="",
            build=lambda: Brightness(idle),
            weights=Weights(),
            preprocess=preprocess,
            labels=(f"bright by {name}",),
            default_split_point="parts.0",
            decode=decode,
            notes=notes,
        )
        super().__init__(TorchNetwork(entry, Brightness(idle)))
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[int] = []
        self._backbone_fails = backbone_fails
        self._device = device

    def backbone(self, name: str) -> Callable[[Tensor], Sequence[Tensor]]:  # type: ignore[override]
        backbone = super().backbone(name)

        def run(images: Tensor) -> Sequence[Tensor]:
            if images.any():  # blank images are of warming up and measuring
                assert self.gate.wait(LONG_S)
                self.batches.append(len(images))
            if self._device is not None:
                self._device.use()
            if self._backbone_fails and is_bad(images):
                raise RuntimeError(f"the backbone of {self.entry.name} fails")
            return backbone(images)  # type: ignore[no-any-return]

        return run


def is_bad(values: Tensor) -> bool:
    return round(values.max().item() * 255) == BAD


def frame(brightness: int, tenant: str, height: int = 4, width: int = 4) -> tuple[Pixels, Origin]:
    """Returns a grey frame whose header is its tenant and its brightness."""
    pixels = Pixels(np.full((height, width, 3), brightness, np.uint8), (0, 1, 2))
    return pixels, Origin((tenant, brightness), tenant, height, width)
