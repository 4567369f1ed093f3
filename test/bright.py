"""Models whose score tells the brightness of the very frame that it was made of, and whose label tells the model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from lost_device import LostDevice
from torch import Tensor, nn

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.pipeline.frame import Origin
from split_infer_ros.split.model import SplitModel

LONG_S = 60.0  # a bound, far above what anything here takes
BAD = 255  # the brightness of a frame that a BrightModel cannot cope with, where told so
CPU = torch.device("cpu")


class Brightness(nn.Module):
    """The mean of red over the image; and weights that nobody needs, so that models differ in size."""

    def __init__(self, idle: int) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(3, 3, 1), nn.AvgPool2d(4), nn.Flatten())
        nn.init.dirac_(self.parts[0].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.parts[0].bias)  # type: ignore[arg-type]
        self.idle = nn.Parameter(torch.zeros(idle))

    def forward(self, images: Tensor) -> Tensor:
        return self.parts(images)[:, :1] + 0 * self.idle.sum()  # type: ignore[no-any-return]


class BrightModel(SplitModel):
    """One of them, which can be made to fail or to wait.

    Args:
        name: whose length is in the name of its only label.
        idle: weights that nobody needs.
        backbone_fails, head_fails: whether a batch with a frame of brightness BAD costs the batch.
        device: that each batch uses, blank ones too.
    """

    def __init__(
        self,
        name: str,
        idle: int = 1,
        backbone_fails: bool = False,
        head_fails: bool = False,
        device: LostDevice | None = None,
    ) -> None:
        def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
            if head_fails and is_bad(outputs[0]):
                raise RuntimeError(f"the head of {name} fails")
            box = torch.tensor([[0.0, 0.0, 4.0, 4.0]])
            return [Detections(box, score.clone(), torch.zeros(1, dtype=torch.int64)) for score in outputs[0]]

        preprocess = Preprocess(4, 4, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
        entry = ModelEntry(
            name, "", lambda: Brightness(idle), Weights(), preprocess, (f"bright by {name}",), "parts.0", decode
        )
        super().__init__(entry, Brightness(idle), CPU)
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[int] = []
        self._backbone_fails = backbone_fails
        self._device = device

    def backbone(self, name: str) -> Callable[[Tensor], Sequence[Tensor]]:  # type: ignore[override]
        inner = super().backbone(name)

        def run(images: Tensor) -> Sequence[Tensor]:
            if images.any():  # others are blank ones, of warming up and measuring
                assert self.gate.wait(LONG_S)
                self.batches.append(len(images))
            if self._device is not None:
                self._device.use()
            if self._backbone_fails and is_bad(images):
                raise RuntimeError(f"the backbone of {self.entry.name} fails")
            return inner(images)  # type: ignore[no-any-return]

        return run


def is_bad(values: Tensor) -> bool:
    return round(values.max().item() * 255) == BAD


def frame(brightness: int, tenant: str, height: int = 4, width: int = 4) -> tuple[Pixels, Origin]:
    """A grey frame whose header says how bright it is, and whose it is."""
    pixels = Pixels(torch.full((height, width, 3), brightness, dtype=torch.uint8), (0, 1, 2))
    return pixels, Origin((tenant, brightness), tenant, height, width)
