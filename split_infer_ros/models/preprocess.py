"""From pixels of any size to a model's input, and boxes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import Pixels

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

LONGEST = 8  # of a strip, so many times its shorter side is resized; a crop shows none of the rest


@dataclass(frozen=True, slots=True)
class Preprocess:
    """Resize, crop, scale to 0..1 and normalise, as the model's weights were trained.

    Attributes:
        height, width: of the model's input, in pixels.
        shorter_side: the image's shorter side is resized to this and the middle cut out, as classifiers do;
            None stretches the image to the input's size, as detectors of fixed size do.
        letterbox: (height, width) within which the image is made to fit instead; it lies at the top left of the input,
            and the rest is of the mean colour.
        antialias: smooth while shrinking and round to whole grey values, as image libraries do; without it,
            plain in float, as torchvision's detectors do.
        interpolation: ``bilinear`` or ``bicubic``.
        mean, std: of red, green and blue, on the 0..1 scale.

    Raises:
        ConfigurationError: the shorter side is less than what is split out of it.
    """

    height: int
    width: int
    shorter_side: int | None = None
    antialias: bool = True
    interpolation: str = "bilinear"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    letterbox: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.shorter_side is not None and self.shorter_side < max(self.height, self.width):
            raise ConfigurationError(
                f"shorter_side {self.shorter_side} is too small for an input of {self.width}x{self.height} pixels "
                f"to be split out; it must be at least {max(self.height, self.width)}."
            )

    def staging(self, batch: int) -> Tensor:
        """A buffer for gather: (batch, height, width, 3), uint8 if antialias else float32 of 0..255."""
        dtype = torch.uint8 if self.antialias else torch.float32
        return torch.empty((batch, self.height, self.width, 3), dtype=dtype)

    def gather(self, images: Sequence[Pixels], staging: Tensor) -> Tensor:
        """Resize each image into its place of ``staging``; returns the part filled, (len(images), h, w, 3)."""
        for index, image in enumerate(images):
            self.fit(image.data.unsqueeze(0), image.rgb, staging[index : index + 1])
        return staging[: len(images)]

    def fit(self, images: Tensor, rgb: tuple[int, int, int], places: Tensor) -> None:
        """Resize images of one size, (k, H, W, channels) of uint8, into ``places``, (k, h, w, 3) on their device."""
        height, width = images.shape[1:3]
        rows, columns = self._skipped(height, width)
        seen = images[:, rows : height - rows, columns : width - columns]
        fit_height, fit_width, top, left = self._geometry(*seen.shape[1:3])
        planes = seen.permute(0, 3, 1, 2)
        if (fit_height, fit_width) != seen.shape[1:3]:
            if not self.antialias or images.is_cuda:  # CUDA resizes floating point alone
                planes = planes.float()
            planes = functional.interpolate(
                planes, size=(fit_height, fit_width), mode=self.interpolation, antialias=self.antialias
            )
            if self.antialias and images.is_cuda:
                planes = planes.round_().clamp_(0, 255)
        if self.letterbox:
            places.copy_(_constant(tuple(255 * m for m in self.mean), torch.float32, images.device))
            places = places[:, :fit_height, :fit_width]
        window = planes[:, :, top : top + self.height, left : left + self.width].permute(0, 2, 3, 1)
        places.copy_(window.index_select(3, _constant(rgb, torch.int64, images.device)))

    def normalise(self, gathered: Tensor) -> Tensor:
        """(N, h, w, 3) of 0..255 to the model's input: float32 (N, 3, h, w), channels-last, on the same device."""
        scale = _constant(tuple(1 / (255 * s) for s in self.std), torch.float32, gathered.device)
        offset = _constant(
            tuple(-m / s for m, s in zip(self.mean, self.std, strict=True)), torch.float32, gathered.device
        )
        return torch.addcmul(offset, gathered.float(), scale).permute(0, 3, 1, 2)

    def to_source(self, boxes: Tensor, height: int, width: int) -> Tensor:
        """Boxes (n, 4) of the model's input as boxes of an image of that size, clipped to it."""
        skipped_rows, skipped_columns = self._skipped(height, width)
        kept_height, kept_width = height - 2 * skipped_rows, width - 2 * skipped_columns
        fit_height, fit_width, top, left = self._geometry(kept_height, kept_width)
        offset = boxes.new_tensor([left, top] * 2)
        scale = boxes.new_tensor([kept_width / fit_width, kept_height / fit_height] * 2)
        skipped = boxes.new_tensor([skipped_columns, skipped_rows] * 2)
        limit = boxes.new_tensor([width, height] * 2)
        return ((boxes + offset) * scale + skipped).clamp(min=0).minimum(limit)

    def _skipped(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of a long strip that are left out at each end before it is resized."""
        if self.shorter_side is None:
            return 0, 0
        longest = LONGEST * min(height, width)
        return max(0, height - longest) // 2, max(0, width - longest) // 2

    def _geometry(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Size to which the whole image is resized, and where in it the model's input lies (top, left)."""
        if self.letterbox:
            most_height, most_width = self.letterbox
            if most_height * width <= most_width * height:
                return most_height, max(1, most_height * width // height), 0, 0
            return max(1, most_width * height // width), most_width, 0, 0
        if self.shorter_side is None:
            return self.height, self.width, 0, 0
        if height <= width:
            fit_height, fit_width = self.shorter_side, int(self.shorter_side * width / height)
        else:
            fit_height, fit_width = int(self.shorter_side * height / width), self.shorter_side
        # torchvision's centre crop rounds so
        return fit_height, fit_width, round((fit_height - self.height) / 2), round((fit_width - self.width) / 2)


@cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor that is made once: making it on a GPU waits for all that the GPU is at."""
    return torch.tensor(values, dtype=dtype, device=device)
