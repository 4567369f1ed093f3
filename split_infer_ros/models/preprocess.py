"""Conversion of pixels of any size to a model's input, and of boxes back to the source image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from split_infer_ros.buffers.host_arrays import Floats
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.images.pixel_input import PixelInput
from split_infer_ros.models import host_pixels
from split_infer_ros.models.fitting import Fitting
from split_infer_ros.models.letterbox import Letterbox

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

MAX_SIZES = 256  # sizes of source images for which the way back from the input is cached
MAX_ASPECT = 8  # of the part of an image that is resized; a crop shows nothing beyond that part
RESIZE_RATIO = 256 / 224  # the resized shorter side divided by the side of the crop, as usual for ImageNet


@dataclass(frozen=True, slots=True)
class Preprocess:
    """How images become a model's input: resized, cropped, scaled and normalised as in the training of the model.

    Attributes:
        height, width: the size of the model's input in pixels.
        shorter_side: the length in pixels to which the image's shorter side is resized. Then the middle is cropped, as
            for classifiers. None stretches the image to the size of the input, as for detectors of a fixed size.
        antialias: whether shrinking smooths the image and rounds pixels to whole numbers, as in image libraries. If
            not, pixels are interpolated as floats, as in torchvision's detectors.
        interpolation: ``bilinear`` or ``bicubic``.
        mean, std: one number for each channel of the input, on the 0..1 scale. The input is (pixel / 255 - mean) / std.
        letterbox: the area of the input into which the image is fitted. None stretches or crops the image.
        opencv: whether images are resized as by OpenCV's ``INTER_LINEAR``: bilinear, not smoothed, and rounded to whole
            numbers. The CPU calls OpenCV, so its results are those of the exporter. On a GPU, a pixel differs by 1 of
            255 at most. If true, ``antialias`` and ``interpolation`` have no effect.
        bgr: whether the input's channels are blue, green and red. If not, they are red, green and blue.

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
        """Whether the pixels of resized images are whole numbers (uint8). If not, they are float32."""
        return self.antialias or self.opencv

    @property
    def pixel_input(self) -> PixelInput:
        """The number format of the images that ``gather`` returns, with their mean and std."""
        return PixelInput(np.dtype(np.uint8 if self.rounds else np.float32), self.mean, self.std)

    def staging(self, batch_size: int) -> NDArray[Any]:
        """Returns a new buffer for ``gather``, (batch_size, height, width, 3): uint8 if ``rounds``, else float32."""
        return np.empty((batch_size, self.height, self.width, 3), self.pixel_input.dtype)

    def gather(self, images: Sequence[Pixels], staging: NDArray[Any]) -> NDArray[Any]:
        """Writes each image, resized, into ``staging``. Returns the filled part of it, (len(images), h, w, 3)."""
        for index, image in enumerate(images):
            self._resize_into(staging[index], image)
        return staging[: len(images)]

    def normalise(self, gathered: NDArray[Any], *, channels_last: bool = True) -> NDArray[np.float32]:
        """Converts images (n, h, w, 3) of 0..255 to the model's input, float32 (n, 3, h, w), in new memory.

        Args:
            gathered: resized images, as ``gather`` returns them.
            channels_last: whether the channels of a pixel lie side by side in the result's memory.
        """
        return host_pixels.normalise(gathered, self.mean, self.std, channels_last=channels_last)

    def to_source(self, boxes: Floats, height: int, width: int) -> Floats:
        """Converts boxes from pixels of the input to pixels of the source image, and clips them to that image.

        Args:
            boxes: float32 (n, 4), left, top, right, bottom in pixels of the input.
            height, width: the size of the source image.
        """
        if not len(boxes):
            return boxes
        offset, scale, skipped, limit = _way_to_source(self, height, width)
        found: Floats = np.minimum(np.maximum((boxes + offset) * scale + skipped, 0), limit)
        return found

    def fitting(self, height: int, width: int) -> Fitting:
        """Returns where an image of this height and width lies in the model's input."""
        # Rows and columns of a long image are skipped at each end, before the image is resized.
        longest = max(height, width) if self.shorter_side is None else MAX_ASPECT * min(height, width)
        skipped_rows, skipped_columns = max(0, height - longest) // 2, max(0, width - longest) // 2
        used = slice(skipped_rows, height - skipped_rows), slice(skipped_columns, width - skipped_columns)
        rows, columns, top, left = _geometry(self, height - 2 * skipped_rows, width - 2 * skipped_columns)
        if self.letterbox:
            place = slice(-top, rows - top), slice(-left, columns - left)
            return Fitting(used, (rows, columns), (slice(0, rows), slice(0, columns)), place)
        shown = slice(top, top + self.height), slice(left, left + self.width)
        return Fitting(used, (rows, columns), shown, (slice(0, self.height), slice(0, self.width)))

    @property
    def padding(self) -> tuple[float, float, float]:
        """The colour of the padding around an image, one number of 0..255 for each channel of the input."""
        red, green, blue = self.mean
        return (self.letterbox and self.letterbox.colour) or (255 * red, 255 * green, 255 * blue)

    def order_of(self, rgb: tuple[int, int, int]) -> tuple[int, int, int]:
        """Returns the indices of an image's channels in the input's order. ``rgb`` has those of red, green and blue.

        With ``bgr``, the input's order is blue, green, red.
        """
        return rgb[::-1] if self.bgr else rgb

    def _resize_into(self, target: NDArray[Any], image: Pixels) -> None:
        """Resizes an image into a buffer (h, w, 3)."""
        fitting = self.fitting(image.height, image.width)
        used: NDArray[Any] = image.data[fitting.used]
        if not self.rounds:
            used = used.astype(np.float32)
        if used.shape[:2] != fitting.size:
            used = self._resized(used, *fitting.size)
        host_pixels.fill_outside(target, fitting.place, self.padding)
        host_pixels.write_reordered(used[fitting.shown], self.order_of(image.rgb), target[fitting.place])

    def _resized(self, image: NDArray[Any], height: int, width: int) -> NDArray[Any]:
        """Resizes an image (H, W, channels) to (height, width, channels)."""
        if self.opencv or not self.antialias:
            return host_pixels.resize(image, height, width, "bilinear" if self.opencv else self.interpolation)
        from split_infer_ros.models.antialiasing import resize_smoothly  # only here: few models need it

        return resize_smoothly(image, height, width, self.interpolation)


def _geometry(to: Preprocess, height: int, width: int) -> tuple[int, int, int, int]:
    """Returns the height and width of the resized image, and the input's top and left in that image.

    Top and left are negative if the input has padding above the image, or to the left of it.
    """
    if to.letterbox:
        fit_height, fit_width = to.letterbox.fit(height, width)
        if to.letterbox.centred:
            return fit_height, fit_width, -((to.height - fit_height) // 2), -((to.width - fit_width) // 2)
        return fit_height, fit_width, 0, 0
    if to.shorter_side is None:
        return to.height, to.width, 0, 0
    if height <= width:
        fit_height, fit_width = to.shorter_side, int(to.shorter_side * width / height)
    else:
        fit_height, fit_width = int(to.shorter_side * height / width), to.shorter_side
    # torchvision's centre crop rounds in this way.
    return fit_height, fit_width, round((fit_height - to.height) / 2), round((fit_width - to.width) / 2)


@lru_cache(MAX_SIZES)
def _way_to_source(preprocess: Preprocess, height: int, width: int) -> tuple[Floats, ...]:
    """Returns offset, scale, skipped and limit, each float32 (4,). They convert a box of the input to the image.

    A side at x becomes (x + offset) * scale + skipped, and is clipped to 0..limit.
    """
    fitting = preprocess.fitting(height, width)
    ends = zip(fitting.used, fitting.size, fitting.shown, fitting.place, (height, width), strict=True)
    rows, columns = (
        (shown.start - place.start, (used.stop - used.start) / resized, used.start, length)
        for used, resized, shown, place, length in ends
    )
    return tuple(np.array(pair * 2, np.float32) for pair in zip(columns, rows, strict=True))
