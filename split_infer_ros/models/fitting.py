"""Where an image lies in a model's input."""

from __future__ import annotations

from dataclasses import dataclass

Window = tuple[slice, slice]  # rows and columns


@dataclass(frozen=True, slots=True)
class Fitting:
    """Which part of an image becomes which part of a model's input.

    Attributes:
        used: the part of the image that is resized.
        size: the height and width to which it is resized, in pixels.
        shown: the part of the resized image that the input shows.
        place: the part of the input that shows it. The rest of the input is padding.
    """

    used: Window
    size: tuple[int, int]
    shown: Window
    place: Window
