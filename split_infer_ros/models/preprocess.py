"""Conversion of pixels of any size to a model's input, and of boxes back to the source image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache, lru_cache

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import BGR, RGB, Pixels
from split_infer_ros.images.pixel_input import PixelInput
from split_infer_ros.models.letterbox import Letterbox
from split_infer_ros.vision_ops.host_arrays import Floats

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

MAX_SIZES = 256  # of source images whose way back is kept
MAX_ASPECT = 8  # of the part of an image that is resized; a crop shows nothing beyond it
RESIZE_RATIO = 256 / 224  # of the resized shorter side to the side of the crop, as usual for ImageNet


@dataclass(frozen=True, slots=True)
class Preprocess:
    """The way in which a model's weights were trained to see an image: resized, cropped, scaled and normalised.

    Attributes:
        height, width: the size of the model's input in pixels.
        shorter_side: the length to which the image's shorter side is resized before the middle is cropped, as for
            classifiers. None stretches the image to the size of the input, as for detectors of a fixed size.
        antialias: whether shrinking smooths and rounds to whole grey values, like image libraries. Otherwise pixels
            are interpolated as floats, like in torchvision's detectors.
        interpolation: ``bilinear`` or ``bicubic``.
        mean, std: of the input's channels, on the 0..1 scale.
        letterbox: the area into which the image is fitted instead of being stretched.
        opencv: whether images are resized as by OpenCV's ``INTER_LINEAR``: bilinear, not smoothed, and rounded to whole
            grey values. The CPU calls OpenCV, whose results are then the exporter's. A GPU differs by one grey value
            at most. It replaces ``antialias`` and ``interpolation``.
        bgr: whether the input's channels are blue, green and red. Otherwise they are red, green and blue.

    Raises:
        ConfigurationError: the shorter side is smaller than the crop.
    """

    height: int
    width: int
    _: KW_ONLY
    shorter_side: int | None = None
    antialias: bool = True
    interpolation: str = "bilinear"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    letterbox: Letterbox | None = None
    opencv: bool = False
    bgr: bool = False

    def __post_init__(self) -> None:
        if self.shorter_side is not None and self.shorter_side < max(self.height, self.width):
            raise ConfigurationError(
                f"shorter_side {self.shorter_side} is too small to crop an input of {self.width}x{self.height} pixels; "
                f"it must be at least {max(self.height, self.width)}."
            )

    @property
    def rounds(self) -> bool:
        """Whether resized pixels are whole grey values."""
        return self.antialias or self.opencv

    @property
    def pixel_input(self) -> PixelInput:
        """The form of what ``gather`` returns."""
        dtype = torch.uint8 if self.rounds else torch.float32
        return PixelInput(dtype, self.mean, self.std)

    def staging(self, batch_size: int) -> Tensor:
        """Makes a buffer for ``gather``: (batch_size, height, width, 3), uint8 if it rounds, else float32 of 0..255."""
        return torch.empty((batch_size, self.height, self.width, 3), dtype=self.pixel_input.dtype)

    def gather(self, images: Sequence[Pixels], staging: Tensor) -> Tensor:
        """Resizes each image into its place of ``staging`` and returns the filled part, (len(images), h, w, 3)."""
        for index, image in enumerate(images):
            self.resize_into(staging[index : index + 1], image.data.unsqueeze(0), image.rgb)
        return staging[: len(images)]

    def resize_into(self, target: Tensor, images: Tensor, rgb: tuple[int, int, int]) -> None:
        """Resizes images of one size into a buffer.

        Args:
            target: (k, h, w, 3) on the device of the images.
            images: uint8 (k, H, W, channels).
            rgb: the indices of the images' red, green and blue channel.
        """
        height, width = images.shape[1:3]
        skipped_rows, skipped_columns = self._skipped(height, width)
        used = images[:, skipped_rows : height - skipped_rows, skipped_columns : width - skipped_columns]
        fit_height, fit_width, top, left = self._geometry(*used.shape[1:3])
        if (fit_height, fit_width) != used.shape[1:3]:
            used = self._resized(used, fit_height, fit_width)
        if self.letterbox:
            rows, columns = slice(-top, fit_height - top), slice(-left, fit_width - left)
            if (fit_height, fit_width) != (self.height, self.width):
                _fill_outside(target, rows, columns, self.letterbox.colour or tuple(255 * m for m in self.mean))
            target = target[:, rows, columns]
            window = used
        else:
            window = used[:, top : top + self.height, left : left + self.width]
        order = rgb[::-1] if self.bgr else rgb
        if order != RGB or window.shape[3] != len(RGB):
            _copy_reordered(window, order, target)
        else:
            target.copy_(window)

    def _resized(self, images: Tensor, height: int, width: int) -> Tensor:
        """Resizes images (k, H, W, channels) to (k, height, width, channels)."""
        if self.opencv and not images.is_cuda:
            resized = [cv2.resize(image.numpy(), (width, height), interpolation=cv2.INTER_LINEAR) for image in images]
            return torch.stack([torch.from_numpy(image).view(height, width, -1) for image in resized])
        planes = images.permute(0, 3, 1, 2)
        if not self.antialias or images.is_cuda:  # CUDA resizes only floating point
            planes = planes.float()
        mode, antialias = ("bilinear", False) if self.opencv else (self.interpolation, self.antialias)
        sizes = [(height, width)]
        rounded = self.rounds and images.is_cuda
        if rounded and mode == "bicubic":  # a CPU clips what overshoots after the rows, and again after the columns
            sizes.insert(0, (planes.shape[2], width))
        for size in sizes:
            planes = functional.interpolate(planes, size=size, mode=mode, antialias=antialias)
            if rounded:
                planes = planes.round_().clamp_(0, 255)
        return planes.permute(0, 2, 3, 1)

    def normalise(
        self,
        gathered: Tensor,
        memory_format: torch.memory_format = torch.channels_last,
        out: Tensor | None = None,
    ) -> Tensor:
        """Converts (N, h, w, 3) of 0..255 to the model's input, float32 (N, 3, h, w), on its device.

        Args:
            gathered: resized images.
            memory_format: the layout of the result: channels-last, or contiguous. Values may differ in the last bit.
            out: where the result is written, in that layout; None for new memory.
        """
        scale = _constant(tuple(1 / (255 * s) for s in self.std), torch.float32, gathered.device)
        offset = _constant(
            tuple(-m / s for m, s in zip(self.mean, self.std, strict=True)), torch.float32, gathered.device
        )
        if memory_format is torch.channels_last:
            written = None if out is None else out.permute(0, 2, 3, 1)
            return torch.addcmul(offset, gathered.float(), scale, out=written).permute(0, 3, 1, 2)
        planes = gathered.permute(0, 3, 1, 2)
        contiguous = torch.empty(planes.shape, device=planes.device) if out is None else out
        if not gathered.is_cuda:
            return _normalised_planes(gathered, scale.tolist(), offset, contiguous)
        return torch.addcmul(offset.view(3, 1, 1), planes.float(), scale.view(3, 1, 1), out=contiguous)

    def to_source(self, boxes: Floats, height: int, width: int) -> Floats:
        """Converts boxes float32 (n, 4) of the model's input to boxes of an image of this size, clipped to it."""
        if not len(boxes):
            return boxes
        offset, scale, skipped, limit = _way_to_source(self, height, width)
        found: Floats = np.minimum(np.maximum((boxes + offset) * scale + skipped, 0), limit)
        return found

    def _skipped(self, height: int, width: int) -> tuple[int, int]:
        """Returns the rows and columns of a long image that are skipped at each end before it is resized."""
        if self.shorter_side is None:
            return 0, 0
        max_side = MAX_ASPECT * min(height, width)
        return max(0, height - max_side) // 2, max(0, width - max_side) // 2

    def _geometry(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Returns height and width to which the image is resized, and top and left of the model's input in it.

        With padding above or at the left, they are negative.
        """
        if self.letterbox:
            fit_height, fit_width = self.letterbox.fit(height, width)
            if self.letterbox.centred:
                return fit_height, fit_width, -((self.height - fit_height) // 2), -((self.width - fit_width) // 2)
            return fit_height, fit_width, 0, 0
        if self.shorter_side is None:
            return self.height, self.width, 0, 0
        if height <= width:
            fit_height, fit_width = self.shorter_side, int(self.shorter_side * width / height)
        else:
            fit_height, fit_width = int(self.shorter_side * height / width), self.shorter_side
        # torchvision's centre crop rounds in this way.
        return fit_height, fit_width, round((fit_height - self.height) / 2), round((fit_width - self.width) / 2)


def _fill_outside(target: Tensor, rows: slice, columns: slice, colour: tuple[float, ...]) -> None:
    """Gives the pixels (k, h, w, 3) outside a window a colour. One value for all channels is written faster."""
    value = colour[0] if len(set(colour)) == 1 else _constant(colour, torch.float32, target.device)
    target[:, : rows.start] = value
    target[:, rows.stop :] = value
    target[:, rows, : columns.start] = value
    target[:, rows, columns.stop :] = value


def _copy_reordered(images: Tensor, order: tuple[int, int, int], target: Tensor) -> None:
    """Writes the channels of images (k, h, w, channels) in that order to a buffer (k, h, w, 3)."""
    if images.is_cuda or order != BGR or images.shape[3] != len(BGR):
        target.copy_(images.index_select(3, _constant(order, torch.int64, images.device)))
        return
    # cameras' usual order, for which OpenCV is ten times as fast
    for image, place in zip(images.to(target.dtype), target, strict=True):
        cv2.cvtColor(image.numpy(), cv2.COLOR_BGR2RGB, dst=place.numpy())


def _normalised_planes(images: Tensor, scale: Sequence[float], offset: Tensor, planes: Tensor) -> Tensor:
    """Scales and shifts the channels of images (N, h, w, 3), and writes them to float32 (N, 3, h, w), contiguous.

    OpenCV separates the channels first. That takes half the time of reading them from among each other. A channel is
    converted and written before the next one, while it is in the processor's caches.
    """
    for image, target in zip(images, planes, strict=True):
        for channel, factor, shift, plane in zip(cv2.split(image.numpy()), scale, offset, target, strict=True):
            torch.add(shift, torch.from_numpy(channel), alpha=factor, out=plane)
    return planes


@lru_cache(MAX_SIZES)
def _way_to_source(preprocess: Preprocess, height: int, width: int) -> tuple[Floats, ...]:
    """Returns offset, scale, skipped and limit, float32 (4,): a side at x lies at (x + offset) * scale + skipped."""
    skipped_rows, skipped_columns = preprocess._skipped(height, width)
    kept_height, kept_width = height - 2 * skipped_rows, width - 2 * skipped_columns
    fit_height, fit_width, top, left = preprocess._geometry(kept_height, kept_width)
    ways = (left, top), (kept_width / fit_width, kept_height / fit_height), (skipped_columns, skipped_rows)
    return tuple(np.array(each * 2, np.float32) for each in (*ways, (width, height)))


@cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Makes a tensor once, because making it on a GPU waits for all work of the GPU."""
    return torch.tensor(values, dtype=dtype, device=device)
