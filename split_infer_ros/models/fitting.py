"""Where an image lies in a model's input."""

from __future__ import annotations

from dataclasses import dataclass

Window = tuple[slice, slice]  # rows and columns


@dataclass(frozen=True, slots=True)
class Fitting:
    """Which part of an image becomes which part of a model's input.

    Attributes:
        used: the rows and columns of the image that are resized.
        size: the height and width in pixels to which they are resized.
        shown: the rows and columns of the resized image that appear in the input.
        place: the rows and columns of the input where they appear. The rest of the input is padding.
    """

    used: Window
    size: tuple[int, int]
    shown: Window
    place: Window
