from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from photographs import photographs

from split_infer_ros.images.encodings import BGR, GREY, RGB
from split_infer_ros.models.host_pixels import fill_outside, normalise, resize, write_reordered

pytestmark = pytest.mark.numeric

HUNDREDTH = 0.01  # of a grey level: float32's last bits of coordinates up to 640, times a step from black to white
SIZES = st.tuples(st.integers(1, 400), st.integers(1, 400))


@settings(max_examples=20)
@given(size=SIZES, interpolation=st.sampled_from(["bilinear", "bicubic"]))
def test_floats_are_resized_as_by_torch(size: tuple[int, int], interpolation: str) -> None:
    image = photographs()[0].astype(np.float32)
    planes = torch.from_numpy(image).permute(2, 0, 1)[None]
    expected = torch.nn.functional.interpolate(planes, size=size, mode=interpolation)[0].permute(1, 2, 0)
    np.testing.assert_allclose(resize(image, *size, interpolation), expected, rtol=0, atol=HUNDREDTH)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(
    ("channels", "order"),
    [(1, GREY), (3, RGB), (3, BGR), (3, (1, 2, 0)), (3, GREY), (4, RGB), (4, BGR), (4, (3, 2, 1))],
)
def test_channels_are_written_in_any_order(channels: int, order: tuple[int, int, int], dtype: type) -> None:
    image = np.random.default_rng(0).integers(0, 256, (5, 7, channels)).astype(dtype)
    memory = np.full((9, 11, 3), 77, dtype)
    target = memory[2:7, 3:10]
    write_reordered(image, order, target)
    assert np.array_equal(target, image[..., list(order)])
    assert (memory == 77).sum() >= 3 * (99 - 35), "nothing else is written"


@pytest.mark.parametrize("colour", [(1.0, 2.0, 3.0), (9.0, 9.0, 9.0)])
def test_a_colour_surrounds_the_window(colour: tuple[float, float, float]) -> None:
    target = np.zeros((5, 6, 3), np.uint8)
    fill_outside(target, (slice(1, 3), slice(2, 6)), colour)
    assert not target[1:3, 2:6].any()
    outside = np.ones((5, 6), bool)
    outside[1:3, 2:6] = False
    assert (target[outside] == colour).all()


@pytest.mark.parametrize("channels_last", [True, False])
def test_normalised_bytes_are_rounded_once(channels_last: bool) -> None:
    """The factor and the offset are float32. Their product and sum are rounded together."""
    mean, std = (0.485, 0.456, 0.0), (0.229, 0.224, 1.0)
    levels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, axis=3)
    factor = np.array([1 / (255 * each) for each in std], np.float32).astype(np.float64)
    offset = np.array([-low / each for low, each in zip(mean, std, strict=True)], np.float32).astype(np.float64)
    found = normalise(levels, mean, std, channels_last=channels_last)
    assert found.dtype == np.float32
    assert np.array_equal(found.transpose(0, 2, 3, 1), (levels * factor + offset).astype(np.float32))
