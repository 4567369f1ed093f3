"""The words of a recipe of pre-processing, such as ``letterbox_corner,bgr,0..255,fill=0``."""

from __future__ import annotations

import re
from enum import Enum

from split_infer_ros.errors import ConfigurationError

MAX_TEXT = 400  # characters
MIN_STD, MAX_NUMBER = 1e-6, 1e6
IMAGENET = "imagenet"  # the range 0..1 with ImageNet's mean and deviation

_NUMBER = re.compile(r"[+-]?(\d{1,9}(\.\d{0,24})?|\.\d{1,24})(e[+-]?\d{1,3})?")


class ShortForm(str, Enum):
    """A word of a recipe that stands for several words."""

    STRETCH_SMOOTH = "stretch_smooth"  # like RT-DETR of Hugging Face
    STRETCH_IMAGENET = "stretch_imagenet"  # like RF-DETR
    CROP_IMAGENET = "crop_imagenet"  # as most classifiers are trained
    YOLOX = "yolox"


class Geometry(str, Enum):
    """Where the image lies in the model's input."""

    LETTERBOX = "letterbox"  # fitted into the middle
    LETTERBOX_CORNER = "letterbox_corner"  # fitted at the top left
    STRETCH = "stretch"  # stretched to the input's size
    CROP = "crop"  # the middle, after the shorter side was resized to the input's longer one
    CROP_RESIZED = "crop_resized"  # the middle, after the shorter side was resized to 256/224 of the input's longer one

    @property
    def is_letterbox(self) -> bool:
        """Whether the whole image is fitted into the input, so that padding surrounds it."""
        return self in (Geometry.LETTERBOX, Geometry.LETTERBOX_CORNER)


class Resizing(str, Enum):
    """How pixels are interpolated when an image is resized. All but ``bicubic`` are bilinear."""

    OPENCV = "opencv"  # as by OpenCV's INTER_LINEAR: not smoothed, rounded to whole grey values
    SMOOTH = "smooth"  # smoothed where the image shrinks, and rounded, as by image libraries
    BICUBIC = "bicubic"  # like smooth, but bicubic
    UNROUNDED = "unrounded"  # neither smoothed nor rounded, as in torchvision's detectors


class Order(str, Enum):
    """The order of the input's channels."""

    RGB = "rgb"
    BGR = "bgr"


class Range(str, Enum):
    """The range of the input's values, from black to white, before a mean is subtracted."""

    UNIT = "0..1"
    LEVELS = "0..255"
    SIGNED = "-1..1"

    @property
    def line(self) -> tuple[float, float]:
        """Factor and offset of this range: a value v on the scale 0..1 becomes v * factor + offset."""
        return {Range.UNIT: (1.0, 0.0), Range.LEVELS: (255.0, 0.0), Range.SIGNED: (2.0, -1.0)}[self]

    @property
    def ends(self) -> tuple[float, float]:
        """The value of black and the value of white."""
        factor, offset = self.line
        return offset, offset + factor


_CHOICES: dict[str, type[Enum]] = {
    "short form": ShortForm,
    "geometry": Geometry,
    "resizing": Resizing,
    "order": Order,
    "range": Range,
}
_NUMBERS = {"mean": (-MAX_NUMBER, MAX_NUMBER), "std": (MIN_STD, MAX_NUMBER), "fill": (0.0, 255.0)}


def _listed(kind: type[Enum]) -> str:
    return "|".join(str(each.value) for each in kind)


GRAMMAR = (
    f"words with commas between them: {_listed(Geometry)}, or a short form {_listed(ShortForm)}; {_listed(Resizing)}; "
    f"{_listed(Order)}; {_listed(Range)}|{IMAGENET}; mean=NUMBER and std=NUMBER, or three numbers with / between them; "
    "fill=NUMBER, three of them, or fill=mean"
)
"""What a recipe may say, for error messages and reference pages."""


class Words(dict[str, str]):
    """The words of a recipe, by key. A key is what a word decides, such as ``geometry``, ``short form`` or ``mean``.

    Args:
        text: words with commas between them, in any order.

    Raises:
        ConfigurationError: the text is too long, a word is unknown, or two words decide the same key.
    """

    def __init__(self, text: str) -> None:
        self._text = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
        if len(text) > MAX_TEXT:
            raise self.refusal(f"has {len(text):,} characters, and at most {MAX_TEXT} are possible")
        for word in (each.strip().lower() for each in text.split(",")):
            key = self._key(word)
            if key in self:
                raise self.contradiction(self[key], word)
            self[key] = word

    def numbers(self, key: str) -> tuple[float, float, float]:
        """Returns the three numbers of ``mean``, ``std`` or ``fill``. A single number in the word stands for all three.

        Raises:
            ConfigurationError: the word does not have one or three numbers, or a number is out of range.
        """
        least, most = _NUMBERS[key]
        texts = self[key].partition("=")[2].split("/")
        numbers = [float(each) for each in texts if _NUMBER.fullmatch(each) and least <= float(each) <= most]
        if len(numbers) != len(texts) or len(texts) not in (1, 3):
            raise self.refusal(
                f"says '{self[key]}', where one number from {least:g} to {most:g} is possible, or three with / "
                "between them"
            )
        first, second, third = numbers * 3 if len(numbers) == 1 else numbers
        return first, second, third

    def contradiction(self, one: str, other: str) -> ConfigurationError:
        """Returns the error for two words that exclude each other."""
        return self.refusal(f"says '{one}' and '{other}', of which only one is possible")

    def refusal(self, what: str) -> ConfigurationError:
        """Returns the error for a recipe that cannot be used.

        Args:
            what: what is wrong, such as "has an empty word". It follows the recipe's text in the error's sentence.
        """
        return ConfigurationError(f"preprocessing '{self._text}' {what}; it takes auto, or {GRAMMAR}.")

    def _key(self, word: str) -> str:
        """Returns the key that a word decides."""
        name, equals, _ = word.partition("=")
        if equals and name in _NUMBERS:
            return name
        if word == IMAGENET:
            return "range"
        for key, kind in _CHOICES.items():
            if word in [each.value for each in kind]:
                return key
        raise self.refusal(f"has the unknown word '{word}'" if word else "has an empty word")
