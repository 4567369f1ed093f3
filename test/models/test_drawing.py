from __future__ import annotations

import numpy as np
import pytest

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections
from split_infer_ros.models.drawing import COLOURS, draw_detections

ONE = Detections(np.array([[20, 30, 60, 70]], np.float32), np.array([0.9], np.float32), np.array([1]))


@pytest.mark.parametrize(("size", "rgb"), [(3, (0, 1, 2)), (4, (2, 1, 0)), (1, (0, 0, 0))])
def test_a_box_is_drawn_on_a_copy(size: int, rgb: tuple[int, int, int]) -> None:
    pixels = Pixels(np.full((100, 120, size), 50, np.uint8), rgb)
    picture = draw_detections(pixels, ONE, ("a", "b"))
    assert picture.shape == (100, 120, 3)
    assert (pixels.data == 50).all()
    for row, column in ((70, 40), (50, 20), (50, 60)):  # the lower, left and right edge
        assert tuple(picture[row, column]) == COLOURS[1]
    assert (picture[50, 40] == 50).all()  # the object itself stays visible
    assert not (picture[16:30, 20:40] == 50).all()  # a caption above it


def test_the_picture_has_red_first() -> None:
    pixels = Pixels(np.array([[[1, 2, 3]]], np.uint8), (2, 1, 0))
    assert draw_detections(pixels, Detections.empty(), ()).tolist() == [[[3, 2, 1]]]


def test_a_caption_stays_inside_the_image() -> None:
    pixels = Pixels(np.zeros((100, 120, 3), np.uint8), (0, 1, 2))
    corner = Detections(np.array([[110, 0, 119, 9]], np.float32), np.array([0.5], np.float32), np.array([0]))
    picture = draw_detections(pixels, corner, ("widest",))
    assert np.count_nonzero((picture == COLOURS[0]).all(axis=2)) > 200


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 300, 3), (300, 1, 3)])
def test_tiny_images_are_drawn_on(shape: tuple[int, int, int]) -> None:
    picture = draw_detections(Pixels(np.zeros(shape, np.uint8), (0, 1, 2)), ONE, ("a", "b"))
    assert picture.shape == shape
