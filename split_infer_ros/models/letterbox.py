"""Fits an image into a model's input without distortion."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Letterbox:
    """The area of a model's input into which an image is fitted, and what surrounds the image.

    Attributes:
        height, width: the size of the area in pixels.
        centred: whether the image lies in the middle of the input, and its size is rounded, as for Ultralytics' models.
            Otherwise the image lies at the top left, and its size is truncated, as for torchvision's.
        colour: the colour of the padding, 0..255, in the order of the input's channels. None is the mean colour that
            the pre-processing subtracts.
    """

    height: int
    width: int
    centred: bool = False
    colour: tuple[float, float, float] | None = None

    def fit(self, height: int, width: int) -> tuple[int, int]:
        """Returns the height and width in pixels to which an image is resized so that it just fits into the area.

        Args:
            height, width: the size of the image in pixels. Its aspect ratio is kept.
        """
        if self.centred:
            ratio = min(self.height / height, self.width / width)
            return max(1, round(height * ratio)), max(1, round(width * ratio))
        if self.height * width <= self.width * height:
            return self.height, max(1, self.height * width // height)
        return max(1, self.width * height // width), self.width
