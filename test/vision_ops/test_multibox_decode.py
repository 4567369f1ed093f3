from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import clip_boxes_to_image

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.vision_ops.multibox_decode import multibox_decode


@settings(max_examples=60)
@given(
    images=st.integers(0, 3),
    count=st.sampled_from([0, 1, 5, 100]),
    spread=st.sampled_from([0.1, 3.0, 100.0]),
    weights=st.sampled_from([(10.0, 10.0, 5.0, 5.0), (1.0, 1.0, 1.0, 1.0)]),
    seed=st.integers(0, 99),
)
def test_boxes_equal_those_of_torchvision(
    images: int, count: int, spread: float, weights: tuple[float, float, float, float], seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    corners = torch.rand((count, 2), generator=random) * 300
    anchors = torch.cat([corners, corners + torch.rand((count, 2), generator=random) * 100 - 1], dim=1)
    offsets = torch.randn((images, count, 4), generator=random) * spread
    offsets[torch.rand(offsets.shape, generator=random) < 0.02] = math.nan
    decoded = multibox_decode(offsets, anchors, weights=weights)
    clipped = multibox_decode(offsets, anchors, size=(320, 300))
    for image in range(images):  # equal to the last bit, because each box takes the same few operations
        expected = BoxCoder(weights).decode_single(offsets[image], anchors)
        torch.testing.assert_close(decoded[image], expected, rtol=0, atol=0, equal_nan=True)
        expected = BoxCoder((10.0, 10.0, 5.0, 5.0)).decode_single(offsets[image], anchors)
        expected = clip_boxes_to_image(expected, (320, 300))
        torch.testing.assert_close(clipped[image], expected, rtol=0, atol=0, equal_nan=True)


def test_half_precision_is_kept() -> None:
    found = multibox_decode(torch.zeros(1, 2, 4, dtype=torch.float16), torch.tensor([[0.0, 0, 4, 8]] * 2).half())
    assert found.dtype == torch.float16
    assert found.tolist() == [[[0, 0, 4, 8]] * 2]


@pytest.mark.parametrize(("offsets", "anchors"), [((2, 5, 4), (4, 4)), ((5, 5), (5, 5)), ((4,), (1, 4))])
def test_shapes_that_do_not_fit_are_refused(offsets: tuple[int, ...], anchors: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match="do not fit"):
        multibox_decode(torch.zeros(offsets), torch.zeros(anchors))
