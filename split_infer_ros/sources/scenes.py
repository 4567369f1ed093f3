"""Draws the pictures of the built-in camera: scenes of circles, squares and triangles with known truth.

A scene is drawn in this order: a soft background texture, clutter, 3 to 12 filled objects, light and noise. Clutter is
soft blobs, lines, open arcs and strokes of writing. These are not objects. Light is gamma, brightness and a gradient.
At 640x480 pixels, a scene keeps these promises:

- The truth box of an object is the tight box of the whole object, hidden parts included.
- Objects lie completely inside the image, and at least half of each is visible.
- The longer side of a box has 12 to 120 pixels. In over a fifth of the objects it has 12 to 24.
- Over a quarter of the scenes have a pair of boxes with an IoU of 0.1 to 0.4. Other boxes never touch.
- The luma of an object differs from its surroundings, and from an object that it overlaps, by at least 0.15 of full
  scale. This holds for the finished picture without its noise, which has a sigma of up to 0.05.

Other image sizes scale all lengths by the smaller of the two ratios.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from split_infer_ros.errors import SourceError
from split_infer_ros.sources.scene_layout import Shape, mask_of, place_shapes, touch

LABELS = ("circle", "square", "triangle")
MIN_SIZE = (64, 48)  # width, height

_Size = tuple[int, int]  # width, height

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_MIN_CONTRAST = 0.18  # before noise and rounding, so that 0.15 holds after them


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture and the objects in it.

    Attributes:
        image: uint8 (height, width, 3), rgb.
        boxes: float32 (number of objects, 4): left, top, right, bottom in pixels. Objects come in the order of drawing.
        labels: int64 (number of objects,): indices into LABELS.
    """

    image: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]


def draw_scene(seed: int, index: int, width: int = 640, height: int = 480) -> Scene:
    """Draws scene ``index`` of the series ``seed``. The same arguments give the same scene.

    Args:
        seed: a whole number from 0. Two seeds share no scene.
        index: the scene's place in the series, from 0.
        width: the width of the image in pixels, at least 64.
        height: the height of the image in pixels, at least 48.

    Raises:
        SourceError: the seed is negative or the image would be too small.
    """
    check_scene(seed, width, height)
    rng = scene_rng(seed, index)
    shapes = place_shapes(rng, width, height)
    image = _background(rng, width, height)
    _clutter(rng, image)
    light = _Light.draw(rng, width, height)
    _paint(rng, image, shapes, light)
    return Scene(
        image=light.shine(rng, image),
        boxes=np.stack([shape.box for shape in shapes]),
        labels=np.array([shape.label for shape in shapes], np.int64),
    )


def check_scene(seed: int, width: int, height: int) -> None:
    """Raises SourceError if the seed is negative or the size is too small."""
    if seed < 0:
        raise SourceError(f"The seed {seed} of a series of scenes is negative; it must be 0 or more.")
    if width < MIN_SIZE[0] or height < MIN_SIZE[1]:
        raise SourceError(f"A scene of {width}x{height} pixels is too small; at least 64x48 are needed.")


def scene_rng(seed: int, index: int) -> np.random.Generator:
    """Returns the generator of random numbers for scene ``index`` of the series ``seed``."""
    # A spawn key keeps (seed, index) unique. A list of both would be read as one long number.
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(index,)))


def _field(
    rng: np.random.Generator, size: _Size, cells: _Size, middle: ArrayLike, spread: ArrayLike
) -> NDArray[np.float32]:
    """Makes a smooth random colour field, float32 (height, width, 3), at most ``spread`` from ``middle``."""
    grid = np.asarray(middle) + np.asarray(spread) * rng.uniform(-1, 1, (cells[1], cells[0], 3))
    return np.asarray(cv2.resize(grid.astype(np.float32), size, interpolation=cv2.INTER_LINEAR), np.float32)


def _background(rng: np.random.Generator, width: int, height: int) -> NDArray[np.uint8]:
    size = width // 4, height // 4
    coarse = _field(rng, size, (5, 4), rng.uniform(30, 225, 3), rng.uniform(0, 35))
    fine = _field(rng, size, (int(rng.integers(12, 70)), int(rng.integers(9, 50))), 0, rng.uniform(0, 18))
    small = np.clip(coarse + fine, 0, 255).astype(np.uint8)
    return np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR), np.uint8)


def _clutter(rng: np.random.Generator, image: NDArray[np.uint8]) -> None:
    """Draws shapes that are not objects: blobs without an edge, lines, open arcs and strokes of writing."""
    height, width = image.shape[:2]
    scale = min(width / 640, height / 480)

    def point() -> tuple[int, int]:
        return int(rng.integers(width)), int(rng.integers(height))

    def colour(strength: float) -> tuple[float, ...]:
        x, y = point()
        return tuple(np.clip(image[y, x] + rng.uniform(-strength, strength, 3), 0, 255).tolist())

    def thickness() -> int:
        return max(1, int(rng.uniform(1, 4) * scale + 0.5))

    if blobs := int(rng.integers(0, 6)):
        # Blobs are drawn at an eighth of the size and enlarged, so that the blur leaves no edge.
        small = np.ascontiguousarray(image[::8, ::8])
        for _ in range(blobs):
            x, y = point()
            axes = (max(1, round(rng.uniform(2, 9) * scale)), max(1, round(rng.uniform(2, 9) * scale)))
            cv2.ellipse(small, (x // 8, y // 8), axes, rng.uniform(0, 180), 0, 360, colour(60), -1)
        soft = cv2.GaussianBlur(small, (3, 3), 0)
        image[:] = cv2.resize(soft, (width, height), interpolation=cv2.INTER_LINEAR)
    for _ in range(rng.integers(0, 9)):
        cv2.line(image, point(), point(), colour(110), thickness(), cv2.LINE_AA)
    for _ in range(rng.integers(0, 4)):
        radius = max(2, round(rng.uniform(8, 70) * scale))
        start = rng.uniform(0, 360)
        end = start + rng.uniform(40, 160)
        cv2.ellipse(image, point(), (radius, radius), 0, start, end, colour(110), thickness(), cv2.LINE_AA)
    for _ in range(rng.integers(0, 3)):
        text = "".join(rng.choice(list("vixtkzsy17EFHM"), 4))
        position, size = point(), rng.uniform(0.3, 1.2) * scale
        cv2.putText(image, text, position, cv2.FONT_HERSHEY_SIMPLEX, size, colour(110), 1, cv2.LINE_AA)


@dataclass(frozen=True, slots=True)
class _Light:
    """Gamma and brightness as a curve of 256 levels, a coloured gradient as a gain per pixel, and noise."""

    curve: NDArray[np.uint8]
    gain: NDArray[np.float32]
    sigma: float

    @classmethod
    def draw(cls, rng: np.random.Generator, width: int, height: int) -> _Light:
        """Chooses a random light."""
        gamma, brightness, offset = rng.uniform(0.65, 1.5), rng.uniform(0.75, 1.1), rng.uniform(-0.04, 0.08)
        level = np.linspace(0, 1, 256) ** gamma * brightness + offset
        gain = _field(rng, (width, height), (3, 3), 1, rng.uniform(0, 0.3, 3))
        return cls(np.clip(level * 255, 0, 255).astype(np.uint8), gain, float(rng.uniform(0, 0.05)))

    def luma(self, colours: NDArray[np.uint8], at: tuple[int, int]) -> NDArray[np.float32]:
        """Returns the luma 0..1, (n,), of colours (n, 3) at pixel x, y under this light."""
        lit = np.clip(self.curve[colours] * self.gain[at[1], at[0]], 0, 255)
        return np.asarray(lit @ _LUMA / 255, np.float32)

    def shine(self, rng: np.random.Generator, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Returns the finished picture. ``image`` and the gain are overwritten."""
        lit = cv2.multiply(cv2.LUT(image, self.curve), self.gain, dst=self.gain, dtype=cv2.CV_32F)
        start = int(rng.integers(_NOISE_OFFSETS))
        noise = _noise(lit.size + _NOISE_OFFSETS)[start : start + lit.size].reshape(lit.shape)
        strength = float(rng.choice([-255, 255])) * self.sigma
        return np.asarray(cv2.addWeighted(lit, 1, noise, strength, 0, dst=image, dtype=cv2.CV_8U), np.uint8)


_NOISE_OFFSETS = 1 << 19  # places at which a picture's noise can begin


@functools.lru_cache(maxsize=2)
def _noise(length: int) -> NDArray[np.float32]:
    """Makes white noise of sigma 1. Each picture uses a part of it.

    The noise is cached, because new noise for each picture would cost more than all else.
    """
    return np.random.default_rng(0).standard_normal(length, np.float32)


def _paint(rng: np.random.Generator, image: NDArray[np.uint8], shapes: list[Shape], light: _Light) -> None:
    """Draws the objects, each in a colour that stands out against its surroundings and the objects below it."""
    background = image.copy()
    colours: list[NDArray[np.uint8]] = []
    for i, shape in enumerate(shapes):
        x, y = ((shape.box[:2] + shape.box[2:]) / 2).astype(int).tolist()
        others = [other for other in shapes if other is not shape]
        behind = [_surroundings(background, shape, others)]
        behind += [colours[j] for j in range(i) if touch(shape.box, shapes[j].box, 0)]
        candidates = rng.integers(0, 256, (32, 3), dtype=np.uint8)
        candidates[-2:] = [[0], [255]]  # black or white always differs enough
        contrast = np.abs(light.luma(candidates, (x, y))[:, None] - light.luma(np.stack(behind), (x, y))).min(1)
        enough = np.flatnonzero(contrast >= _MIN_CONTRAST)
        colour = candidates[enough[0] if len(enough) else contrast.argmax()]
        colours.append(colour)
        shape.fill(image, tuple(colour.tolist()))


def _surroundings(background: NDArray[np.uint8], shape: Shape, others: list[Shape]) -> NDArray[np.uint8]:
    """Returns the mean colour of a four-pixel rim around the shape. Other shapes are left out if any pixel remains."""
    height, width = background.shape[:2]
    left, top = np.maximum(np.floor(shape.box[:2]).astype(int) - 4, 0).tolist()
    right, bottom = np.minimum(np.ceil(shape.box[2:]).astype(int) + 4, [width, height]).tolist()
    window = left, top, right, bottom
    mask = mask_of(shape, window).view(np.uint8)
    rim = cv2.dilate(mask, np.ones((9, 9), np.uint8)) - mask
    for other in others:
        if touch(shape.box, other.box, 5):
            rim[mask_of(other, window)] = 0
    colour = cv2.mean(background[top:bottom, left:right], rim if rim.any() else None)
    return np.array(colour[:3]).astype(np.uint8)
