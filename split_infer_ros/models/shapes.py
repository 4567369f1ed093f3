"""A small detector of the circles, squares and triangles in drawn scenes (sources/scenes.py).

It is anchor-free and has one cell for each 8x8 pixels. For each class, a cell says whether an object's centre lies in
it, and where that object's box is. The default split point lies before the head. There, an image has 10 channels of
60x80 cells (192,000 bytes). The weights take less than 1 MB. scripts/train_shapes.py trains them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from split_infer_ros.models.candidates import Candidates, suppress
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.models.shapes_file import DEFAULT_SPLIT_POINT, LABELS, NAME, STRIDE, SUMMARY, WEIGHTS

HEIGHT, WIDTH = 480, 640
MEAN = (0.5, 0.5, 0.5)
STD = (0.25, 0.25, 0.25)


def _conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """Computes x + relu(norm(conv(x))) on maps with ``channels`` channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_conv(channels, channels), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Returns the sum for ``x``, (N, channels, H, W), in the same shape."""
        return x + self.body(x)  # type: ignore[no-any-return]


class Neck(nn.Module):
    """Joins features of stride 8 and of stride 16 into a few channels of stride 8.

    Args:
        fine: channels of the features of stride 8.
        coarse: channels of the features of stride 16.
        outputs: channels of the result.
    """

    def __init__(self, fine: int, coarse: int, outputs: int) -> None:
        super().__init__()
        self.reduce = nn.Sequential(*_conv(coarse, fine, 1))
        self.join = nn.Sequential(nn.ReLU(), *_conv(fine, fine), nn.ReLU(), *_conv(fine, outputs, 1))

    def forward(self, fine: Tensor, coarse: Tensor) -> Tensor:
        """Converts features (N, fine, H, W) and (N, coarse, H/2, W/2) to (N, outputs, H, W)."""
        return self.join(fine + F.interpolate(self.reduce(coarse), scale_factor=2.0))  # type: ignore[no-any-return]


class Head(nn.Module):
    """The last layers. They compute class logits and raw boxes of all cells.

    Args:
        inputs: channels of the features.
        hidden: channels between the layers.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(*_conv(inputs, hidden), nn.ReLU())
        self.classes = nn.Conv2d(hidden, len(LABELS), 1)
        self.boxes = nn.Conv2d(hidden, 4, 1)
        nn.init.constant_(self.classes.bias, -4.0)  # type: ignore[arg-type]  # few cells hold a centre
        nn.init.normal_(self.boxes.weight, std=0.01)
        with torch.no_grad():
            self.boxes.bias.copy_(torch.tensor([0.0, 0.0, 1.5, 1.5]))  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Converts features (N, inputs, H, W) to class logits (N, 3, H, W) and boxes (N, 4, H, W); see ``boxes_of``."""
        x = self.hidden(x)
        return self.classes(x), self.boxes(x)


class ShapesNet(nn.Module):
    """The network of the detector. Its children run in their order, and it can be split after each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_conv(3, 16, 3, 2), nn.ReLU())
        self.block1 = nn.Sequential(*_conv(16, 32, 3, 2), nn.ReLU())
        self.block2 = nn.Sequential(*_conv(32, 48, 3, 2), nn.ReLU())
        self.block3 = Residual(48)
        self.block4 = nn.Sequential(*_conv(48, 96, 3, 2), nn.ReLU())
        self.block5 = Residual(96)
        self.block6 = Residual(96)
        self.block7 = Residual(96)
        self.neck = Neck(48, 96, 10)
        self.head = Head(10, 48)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the raw outputs for normalised images.

        Args:
            x: float32 (N, 3, H, W), scaled to 0..1 and then normalised with MEAN and STD. H and W are divisible by 16;
                the pipeline uses 480 and 640.

        Returns:
            Class logits (N, 3, H/8, W/8) and boxes (N, 4, H/8, W/8) as ``boxes_of`` reads them.
        """
        fine = self.block3(self.block2(self.block1(self.stem(x))))
        coarse = self.block7(self.block6(self.block5(self.block4(fine))))
        return self.head(self.neck(fine, coarse))  # type: ignore[no-any-return]


def boxes_of(raw: Tensor) -> Tensor:
    """Decodes the boxes of all cells.

    Args:
        raw: (N, 4, h, w), four numbers for each cell, in cells. The first two are the distances of the box's centre
            from the cell's centre. The others are the logarithms of the box's width and height.

    Returns:
        (N, h, w, 4), left, top, right, bottom in pixels of the network's input.
    """
    h, w = raw.shape[2:]
    x = torch.arange(w, dtype=raw.dtype, device=raw.device) + 0.5
    y = torch.arange(h, dtype=raw.dtype, device=raw.device)[:, None] + 0.5
    centre = torch.stack([raw[:, 0] + x, raw[:, 1] + y], -1)
    half = raw[:, 2:].permute(0, 2, 3, 1).clamp(max=6).exp() / 2
    return STRIDE * torch.cat([centre - half, centre + half], -1)


def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
    """Returns the detections of each image of a batch, with boxes in pixels of the network's input.

    Args:
        outputs: the outputs of ``ShapesNet``.
        limits: decide which detections are kept.
    """
    logits, raw = outputs
    best, labels = logits.float().flatten(2).max(1)  # a cell holds one object, so it has one class
    height, width = logits.shape[2:]
    edge = torch.tensor([width, height, width, height], device=raw.device) * float(STRIDE)
    boxes = boxes_of(raw.float()).flatten(1, 2).clamp(min=0).minimum(edge)
    return suppress(Candidates(boxes, best.sigmoid(), labels), limits)


ENTRIES = (
    ModelEntry(
        name=NAME,
        summary=SUMMARY,
        build=ShapesNet,
        weights=Weights(path=WEIGHTS),
        preprocess=Preprocess(HEIGHT, WIDTH, mean=MEAN, std=STD),
        labels=LABELS,
        default_split_point=DEFAULT_SPLIT_POINT,
        decode=decode,
    ),
)
