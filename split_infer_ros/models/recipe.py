"""Recipes: how images become the input of an ONNX file, in a few words such as ``letterbox_corner,bgr,0..255``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from split_infer_ros.models.letterbox import Letterbox
from split_infer_ros.models.preprocess import IMAGENET_MEAN, IMAGENET_STD, RESIZE_RATIO, Preprocess
from split_infer_ros.models.recipe_words import IMAGENET, Geometry, Order, Range, Resizing, ShortForm, Words

Colour = tuple[float, float, float]

GREY = (114.0, 114.0, 114.0)

_ZERO, _ONE = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How images become a model's input. ``parse`` makes a recipe of a text, and ``str`` makes such a text of a recipe.

    Attributes:
        geometry: where the image lies in the input.
        resizing: how pixels are interpolated.
        order: the order of the input's channels.
        range: the range of the values before ``mean`` and ``std`` are applied.
        mean, std: a number for each channel of the input, on the scale of ``range``. The input is (value - mean) / std.
        fill: the colour of the padding in a letterbox, 0..255, in the order of the input's channels. None is the mean
            colour: ``mean`` itself, or ImageNet's mean if ``mean`` is 0.
    """

    geometry: Geometry = Geometry.LETTERBOX
    resizing: Resizing = Resizing.OPENCV
    order: Order = Order.RGB
    range: Range = Range.UNIT
    mean: Colour = _ZERO
    std: Colour = _ONE
    fill: Colour | None = GREY

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """Reads a recipe: words in any order, with commas between them, such as ``letterbox_corner,bgr,0..255``.

        A short form, such as ``yolox``, is one word that stands for several. What no other word says follows from the
        short form. Without a short form, it follows from the word for the geometry. There are two exceptions:

        - A word for the range drops the short form's mean and std.
        - A mean or std without a word for the range is on the scale 0..1, even if the short form has another range.

        Raises:
            ConfigurationError: a word is unknown, two words contradict each other, no word names the geometry, or a
                mean or std is impossible in its range.
        """
        return _read(Words(text))

    def __str__(self) -> str:
        words = [self.geometry.value, self.resizing.value, self.order.value, *self._values()]
        if self.geometry.is_letterbox:
            words.append(f"fill={'mean' if self.fill is None else _written(self.fill)}")
        return ",".join(words)

    def in_order(self, order: Order) -> Recipe:
        """Returns this recipe with the channels in an order. Its mean and std are reordered with them."""
        if order is self.order:
            return self
        return replace(self, order=order, mean=_triple(self.mean[::-1]), std=_triple(self.std[::-1]))

    def as_levels(self) -> Recipe:
        """Returns this recipe with the range 0..255 and without a mean and std.

        It suits an input that takes grey values as they are.
        """
        return replace(self, range=Range.LEVELS, mean=_ZERO, std=_ONE)

    def preprocess(self, height: int, width: int) -> Preprocess:
        """Makes the pre-processing of this recipe for an input of this height and width in pixels."""
        longer, (factor, offset) = max(height, width), self.range.line
        mean = _triple((mean - offset) / factor for mean in self.mean)
        rounds = self.resizing is not Resizing.UNROUNDED
        area = None
        if self.geometry.is_letterbox:
            colour = self._fill(mean)
            colour = _triple(map(round, colour)) if rounds else colour  # resized pixels are whole grey values
            area = Letterbox(height, width, centred=self.geometry is Geometry.LETTERBOX, colour=colour)
        shorter = {Geometry.CROP: longer, Geometry.CROP_RESIZED: round(RESIZE_RATIO * longer)}
        return Preprocess(
            height,
            width,
            shorter_side=shorter.get(self.geometry),
            antialias=rounds,
            interpolation="bicubic" if self.resizing is Resizing.BICUBIC else "bilinear",
            mean=mean,
            std=_triple(std / factor for std in self.std),
            letterbox=area,
            opencv=self.resizing is Resizing.OPENCV,
            bgr=self.order is Order.BGR,
        )

    def _fill(self, mean: Colour) -> Colour:
        """Returns the colour of the padding, 0..255."""
        if self.fill is not None:
            return self.fill
        named = mean if self.mean != _ZERO else _ordered(IMAGENET_MEAN, self.order)
        return _triple(min(max(255 * level, 0.0), 255.0) for level in named)

    def _values(self) -> Iterator[str]:
        """Yields the words that say which values the input has."""
        imagenet = [_ordered(values, self.order) for values in (IMAGENET_MEAN, IMAGENET_STD)]
        if self.range is Range.UNIT and [self.mean, self.std] == imagenet:
            yield IMAGENET
            return
        yield self.range.value
        if self.mean != _ZERO:
            yield f"mean={_written(self.mean)}"
        if self.std != _ONE:
            yield f"std={_written(self.std)}"


_OF_IMAGENET = Recipe(mean=IMAGENET_MEAN, std=IMAGENET_STD)

_OF_SHORT_FORM = {
    ShortForm.STRETCH_SMOOTH: Recipe(Geometry.STRETCH, Resizing.SMOOTH),
    ShortForm.STRETCH_IMAGENET: replace(_OF_IMAGENET, geometry=Geometry.STRETCH, resizing=Resizing.SMOOTH),
    ShortForm.CROP_IMAGENET: replace(_OF_IMAGENET, geometry=Geometry.CROP_RESIZED, resizing=Resizing.SMOOTH),
    ShortForm.YOLOX: Recipe(Geometry.LETTERBOX_CORNER, order=Order.BGR, range=Range.LEVELS),
}

# The recipe that a word for the geometry stands for if the text has no short form.
_OF_GEOMETRY = {
    Geometry.LETTERBOX: Recipe(),  # like Ultralytics' detectors
    Geometry.LETTERBOX_CORNER: Recipe(Geometry.LETTERBOX_CORNER, Resizing.UNROUNDED, fill=None),  # like torchvision's
    Geometry.STRETCH: Recipe(Geometry.STRETCH),  # like Ultralytics' RT-DETR
    Geometry.CROP: Recipe(Geometry.CROP, Resizing.SMOOTH),  # like Ultralytics' classifiers
    Geometry.CROP_RESIZED: Recipe(Geometry.CROP_RESIZED, Resizing.SMOOTH),
}


def _read(words: Words) -> Recipe:
    """Returns the recipe that the words describe together."""
    if "short form" in words:
        recipe = _OF_SHORT_FORM[ShortForm(words["short form"])]
    elif "geometry" in words:
        recipe = _OF_GEOMETRY[Geometry(words["geometry"])]
    else:
        raise words.refusal("does not say where the image lies in the input")
    if "geometry" in words:
        recipe = replace(recipe, geometry=Geometry(words["geometry"]))
    if "resizing" in words:
        recipe = replace(recipe, resizing=Resizing(words["resizing"]))
    recipe = _with_values(recipe.in_order(Order(words.get("order") or recipe.order)), words)
    if "fill" not in words:
        return recipe
    if not recipe.geometry.is_letterbox:
        raise words.refusal(f"says '{words['fill']}', but {recipe.geometry.value} leaves nothing to be filled")
    return replace(recipe, fill=None if words["fill"] == "fill=mean" else words.numbers("fill"))


def _with_values(recipe: Recipe, words: Words) -> Recipe:
    """Sets the range, mean and std that the words say. A word for the range drops the short form's mean and std."""
    named = [words[key] for key in ("mean", "std") if key in words]
    if words.get("range") == IMAGENET:
        if named:
            raise words.contradiction(IMAGENET, named[0])
        mean, std = (_ordered(values, recipe.order) for values in (IMAGENET_MEAN, IMAGENET_STD))
        return replace(recipe, range=Range.UNIT, mean=mean, std=std)
    if "range" in words:
        recipe = replace(recipe, range=Range(words["range"]), mean=_ZERO, std=_ONE)
    elif named:
        recipe = replace(recipe, range=Range.UNIT)
    low, high = recipe.range.ends
    if "mean" in words:
        recipe = replace(recipe, mean=_within(words, "mean", recipe.range, low, high))
    if "std" in words:
        recipe = replace(recipe, std=_within(words, "std", recipe.range, 0.0, high - low))
    return recipe


def _within(words: Words, key: str, range: Range, least: float, most: float) -> Colour:
    """Returns the numbers of a mean or std.

    Refuses numbers that are impossible in the range. With them, all images would be nearly the same.
    """
    numbers = words.numbers(key)
    if not all(least <= number <= most for number in numbers):
        raise words.refusal(
            f"says '{words[key]}', which values in {range.value} cannot have; numbers of grey values need the word "
            f"{Range.LEVELS.value} beside them"
        )
    return numbers


def _ordered(values: Colour, order: Order) -> Colour:
    """Brings numbers for red, green and blue to the order of the input's channels."""
    return values if order is Order.RGB else _triple(values[::-1])


def _triple(values: Iterable[float]) -> Colour:
    first, second, third = values
    return float(first), float(second), float(third)


def _written(values: Colour) -> str:
    """Writes three numbers exactly, so that reading gives the same ones. If all are equal, one number is written."""
    texts = [f"{value:g}" if float(f"{value:g}") == value else repr(value) for value in values]
    return texts[0] if len(set(texts)) == 1 else "/".join(texts)
