from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from photographs import photographs

from split_infer_ros.models.antialiasing import resize_smoothly

pytestmark = pytest.mark.numeric

SIDES = st.integers(1, 400)
LEVELS = {"bilinear": 1, "bicubic": 8}  # grey values: each of two passes rounds, and bicubic overshoots at edges


def without_torch(image: np.ndarray, height: int, width: int, interpolation: str) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        return resize_smoothly(image, height, width, interpolation)


@settings(max_examples=30, deadline=None)
@given(height=SIDES, width=SIDES, interpolation=st.sampled_from(sorted(LEVELS)), channels=st.sampled_from([1, 3, 4]))
def test_a_process_without_torch_sees_nearly_the_same(
    height: int, width: int, interpolation: str, channels: int
) -> None:
    photograph = photographs()[0]
    image = np.concatenate([photograph, 255 - photograph[..., :1]], axis=2)[..., :channels]
    import torch  # noqa: F401  # so that the first of both is torch's

    by_torch = resize_smoothly(image, height, width, interpolation)
    by_pillow = without_torch(image, height, width, interpolation)
    assert by_pillow.shape == by_torch.shape == (height, width, channels)
    assert by_pillow.dtype == np.uint8
    assert np.abs(by_pillow.astype(int) - by_torch).max() <= LEVELS[interpolation]


def test_shrinking_smooths() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    for resize in (resize_smoothly, without_torch):
        assert np.abs(resize(stripes, 8, 8, "bilinear").astype(int) - 127).max() <= 8
