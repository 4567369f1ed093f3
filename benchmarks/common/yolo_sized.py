"""A detector of the size of YOLOv8n: 3.2 million parameters, and the same outputs and metadata in its ONNX file.

Users' own models are nearly always of this kind. The network is defined here, so that nothing has to be downloaded. Its
weights are random, from a seed. So it finds nothing in an image, but its scores and boxes depend on the image.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.common.yolo_size import HEIGHT, WIDTH
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.sources.scenes import draw_scene

NUM_CLASSES = 80
NUM_BINS = 16  # bins of the distribution of each side of a box
STRIDES = (8, 16, 32)
WIDTHS = (16, 32, 64, 128, 256)  # YOLOv8n's channels at strides 2, 4, 8, 16 and 32
DEPTHS = (1, 2, 2, 1)  # residual blocks at strides 4, 8, 16 and 32
SCORE_BIAS = -8.5  # lets few boxes reach a threshold, as after training
SCORE_STD = 2.0  # standard deviation of the scores' logits
NUM_SCENES = 4  # scenes on which the weights are calibrated


class Conv(nn.Sequential):
    """A convolution with ``size`` x ``size`` weights, its batch norm and SiLU."""

    def __init__(self, inputs: int, outputs: int, size: int = 1, stride: int = 1) -> None:
        convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(outputs), nn.SiLU())


class Residual(nn.Module):
    """Two 3x3 convolutions. If ``adds``, their input is added to their result."""

    def __init__(self, channels: int, adds: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(Conv(channels, channels, 3), Conv(channels, channels, 3))
        self.adds = adds

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        return x + self.body(x) if self.adds else self.body(x)  # type: ignore[no-any-return]


class Stage(nn.Module):
    """A stage of the backbone or the neck: half of the channels pass through ``depth`` residual blocks.

    The last convolution takes the other half of the channels and the results of all blocks.
    """

    def __init__(self, inputs: int, outputs: int, *, depth: int, adds: bool = True) -> None:
        super().__init__()
        half = outputs // 2
        self.first = Conv(inputs, outputs)
        self.blocks = nn.ModuleList(Residual(half, adds) for _ in range(depth))
        self.last = Conv((2 + depth) * half, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, inputs, H, W) to (N, outputs, H, W)."""
        kept = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            kept.append(block(kept[-1]))
        return self.last(torch.cat(kept, 1))  # type: ignore[no-any-return]


class Pyramid(nn.Module):
    """Joins a feature map with its maxima over 5x5, 9x9 and 13x13 cells."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = Conv(channels, channels // 2)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.last = Conv(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        maps = [self.first(x)]
        for _ in range(3):
            maps.append(self.pool(maps[-1]))
        return self.last(torch.cat(maps, 1))  # type: ignore[no-any-return]


class Neck(nn.Module):
    """Passes features from coarse feature maps to fine ones and back. The maps have strides 8, 16 and 32.

    Args:
        fine, middle, coarse: the channels of the maps.
    """

    def __init__(self, fine: int, middle: int, coarse: int) -> None:
        super().__init__()
        self.upsample = nn.Upsample(scale_factor=2.0)
        self.middle_down = Stage(coarse + middle, middle, depth=1, adds=False)
        self.fine_out = Stage(middle + fine, fine, depth=1, adds=False)
        self.fine_to_middle = Conv(fine, fine, 3, 2)
        self.middle_out = Stage(fine + middle, middle, depth=1, adds=False)
        self.middle_to_coarse = Conv(middle, middle, 3, 2)
        self.coarse_out = Stage(middle + coarse, coarse, depth=1, adds=False)

    def forward(self, fine: Tensor, middle: Tensor, coarse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keeps the shapes of the three maps."""
        joined = self.middle_down(torch.cat([self.upsample(coarse), middle], 1))
        fine = self.fine_out(torch.cat([self.upsample(joined), fine], 1))
        middle = self.middle_out(torch.cat([self.fine_to_middle(fine), joined], 1))
        coarse = self.coarse_out(torch.cat([self.middle_to_coarse(middle), coarse], 1))
        return fine, middle, coarse


class Branch(nn.Module):
    """Predicts boxes from one feature map: the distances to the sides of a box, and its scores.

    Args:
        inputs: the channels of the map.
        fine: those of the finest map.
    """

    def __init__(self, inputs: int, fine: int) -> None:
        super().__init__()
        sides, scores = max(16, fine // 4, 4 * NUM_BINS), max(fine, NUM_CLASSES)
        self.sides = nn.Sequential(Conv(inputs, sides, 3), Conv(sides, sides, 3), nn.Conv2d(sides, 4 * NUM_BINS, 1))
        self.scores = nn.Sequential(Conv(inputs, scores, 3), Conv(scores, scores, 3), nn.Conv2d(scores, NUM_CLASSES, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, inputs, H, W) to (N, 4 * NUM_BINS + NUM_CLASSES, H * W): logits of distances and scores."""
        return torch.cat([self.sides(x), self.scores(x)], 1).flatten(2)


class YoloSized(nn.Module):
    """The network. It maps float32 (N, 3, 480, 640) of 0..1 to (N, 4 + 80, 6300): centre, size and scores of boxes.

    Args:
        widths: the channels at strides 2, 4, 8, 16 and 32.
    """

    def __init__(self, widths: Sequence[int] = WIDTHS) -> None:
        super().__init__()
        layers: list[nn.Module] = [Conv(3, widths[0], 3, 2)]
        for inputs, outputs, depth in zip(widths, widths[1:], DEPTHS, strict=False):
            layers += [Conv(inputs, outputs, 3, 2), Stage(outputs, outputs, depth=depth)]
        self.to_fine, self.to_middle = nn.Sequential(*layers[:5]), nn.Sequential(*layers[5:7])
        self.to_coarse = nn.Sequential(*layers[7:], Pyramid(widths[-1]))
        self.neck = Neck(*widths[2:])
        self.branches = nn.ModuleList(Branch(inputs, widths[2]) for inputs in widths[2:])
        centres, strides = _grid()
        self.register_buffer("centres", centres)
        self.register_buffer("strides", strides)
        self.register_buffer("bins", torch.arange(NUM_BINS, dtype=torch.float32).view(1, 1, NUM_BINS, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Returns boxes (N, 84, 6300) as centre x and y, width and height in pixels, and 80 scores of 0..1."""
        fine = self.to_fine(images)
        middle = self.to_middle(fine)
        maps = self.neck(fine, middle, self.to_coarse(middle))
        raw = torch.cat([branch(each) for branch, each in zip(self.branches, maps, strict=True)], 2)
        sides, scores = raw.split([4 * NUM_BINS, NUM_CLASSES], 1)
        shares = sides.reshape(-1, 4, NUM_BINS, self.centres.shape[1]).softmax(2)
        left_top, right_bottom = (shares * self.bins).sum(2).chunk(2, 1)
        start, end = self.centres - left_top, self.centres + right_bottom
        boxes = torch.cat([(start + end) / 2, end - start], 1) * self.strides
        return torch.cat([boxes, scores.sigmoid()], 1)


def _grid() -> tuple[Tensor, Tensor]:
    """Returns the centres of all cells, (2, 6300) in cells, and the strides, (1, 6300) in pixels."""
    centres, strides = [], []
    for stride in STRIDES:
        rows, columns = torch.arange(HEIGHT // stride) + 0.5, torch.arange(WIDTH // stride) + 0.5
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        centres.append(torch.stack([x.flatten(), y.flatten()]))
        strides.append(torch.full((1, x.numel()), float(stride)))
    return torch.cat(centres, 1), torch.cat(strides, 1)


def make_network(seed: int = 0, widths: Sequence[int] = WIDTHS) -> nn.Module:
    """Returns the network with random weights from a seed. Its scores vary with the image as in a trained network.

    Args:
        seed: the seed.
        widths: the channels at strides 2, 4, 8, 16 and 32. By default, the network has the size of YOLOv8n.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        network = YoloSized(widths).eval()
        images = scenes(NUM_SCENES)
        randomise(network, images, seed)
        for branch in network.branches:
            assert isinstance(branch, Branch)
            for last, bias in ((branch.sides[-1], 0.0), (branch.scores[-1], SCORE_BIAS)):
                assert isinstance(last, nn.Conv2d)
                assert last.bias is not None
                last.weight.mul_(SCORE_STD / last.in_channels**0.5 / last.weight.std())
                last.bias.fill_(bias)
    return network


def scenes(count: int) -> Tensor:
    """Returns drawn scenes, float32 (count, 3, 480, 640) of 0..1."""
    drawn = [torch.from_numpy(draw_scene(0, index).image) for index in range(count)]
    return torch.stack(drawn).permute(0, 3, 1, 2).contiguous().float() / 255


def export(network: nn.Module, path: Path, labels: Sequence[str] = ()) -> None:
    """Writes the network to an ONNX file with a symbolic batch size, and with the metadata of the usual exporter.

    Args:
        network: the network.
        path: the file to write.
        labels: the names of the classes; without them, ``class0`` and so on.
    """
    import onnx

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (torch.zeros((2, 3, HEIGHT, WIDTH)),),
            str(path),
            input_names=["images"],
            output_names=["output0"],
            dynamic_axes={"images": {0: "batch"}, "output0": {0: "batch"}},
            dynamo=False,
        )
    model = onnx.load(path)
    names = dict(enumerate(labels or [f"class{number}" for number in range(NUM_CLASSES)]))
    facts = {"names": names, "task": "detect", "imgsz": [HEIGHT, WIDTH], "stride": 32, "batch": 1}
    for key, value in facts.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, str(value)
    onnx.save(model, path)
