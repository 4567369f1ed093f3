from __future__ import annotations

import math

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.vision_ops.roi_align import roi_align


@settings(max_examples=60)
@given(
    count=st.sampled_from([0, 1, 20]),
    size=st.sampled_from([(1, 1), (3, 2), (7, 7)]),
    sampling_ratio=st.sampled_from([-1, 2]),
    aligned=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16]),
    seed=st.integers(0, 99),
)
def test_features_equal_those_of_torchvision(
    count: int, size: tuple[int, int], sampling_ratio: int, aligned: bool, dtype: torch.dtype, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    features = torch.rand((2, 3, 10, 12), generator=random).to(dtype)
    corners = torch.rand((count, 2), generator=random) * 60 - 20  # some of them outside or inverted
    regions = torch.cat([corners, corners + torch.rand((count, 2), generator=random) * 40 - 5], dim=1)
    images = torch.randint(0, 2, (count,), generator=random)
    found = roi_align(
        features, regions, images, size, spatial_scale=0.25, sampling_ratio=sampling_ratio, aligned=aligned
    )
    rows = torch.cat([images[:, None], regions[:, :2], regions[:, 2:].maximum(regions[:, :2])], dim=1)
    wide = features.float() if dtype is torch.float16 else features
    expected = torchvision.ops.roi_align(wide, rows.to(wide.dtype), size, 0.25, sampling_ratio, aligned)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected.to(dtype), rtol=0, atol=0)  # by the same kernel


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_a_scale_that_is_not_positive_is_refused(scale: float) -> None:
    with pytest.raises(ConfigurationError, match="spatial_scale is"):
        roi_align(torch.ones(1, 1, 4, 4), torch.zeros(1, 4), torch.tensor([0]), (2, 2), spatial_scale=scale)


def test_distant_regions_are_not_taken_for_a_large_one() -> None:
    regions = torch.tensor([[0.0, 0, 2, 2], [1e5, 0, 1e5 + 2, 2]])
    found = roi_align(torch.ones(1, 1, 4, 4), regions, torch.tensor([0, 0]), (1, 1))
    assert found.flatten().tolist() == [1, 0]


def test_features_are_0_far_outside_the_map() -> None:
    found = roi_align(torch.ones(1, 1, 4, 4), torch.tensor([[100.0, 100, 120, 120]]), torch.tensor([0]), (2, 2))
    assert found.tolist() == [[[[0, 0], [0, 0]]]]


@pytest.mark.usefixtures("gpu")
def test_regions_are_prepared_alike_on_both_devices() -> None:
    random = torch.Generator().manual_seed(0)
    for dtype in (torch.float16, torch.float32, torch.float64):
        regions = (torch.rand((50, 4), generator=random) * 40).to(dtype)  # half of them inverted
        images = torch.randint(0, 2, (50,), generator=random)
        features = torch.rand((2, 3, 10, 12), generator=random).to(dtype)
        on_host, on_device = (
            roi_align(features.to(device), regions.to(device), images.to(device), (3, 2), spatial_scale=0.25)
            for device in ("cpu", "cuda")
        )
        assert on_device.is_cuda
        assert on_device.dtype == on_host.dtype
        assert torch.equal(on_device.cpu(), on_host)  # by the same kernel, which a simulated GPU runs as well


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("features", "regions", "images", "size", "message"),
    [
        ((3, 4, 4), [[0.0, 0, 1, 1]], [0], (2, 2), "do not fit"),
        ((1, 3, 4, 4), [[0.0, 0, 1, 1]], [0, 0], (2, 2), "do not fit"),
        ((1, 3, 4, 4), [[0.0, 0, 1, 1]], [1], (2, 2), "images 1 to 1; there are 1"),
        ((1, 3, 4, 4), [[0.0, 0, 1, 1]], [-1], (2, 2), "images -1 to -1"),
        ((1, 3, 4, 4), [[0.0, 0, math.nan, 1]], [0], (2, 2), "NaN or infinite"),
        ((1, 3, 4, 4), [[0.0, 0, math.inf, 1]], [0], (2, 2), "NaN or infinite"),
        ((1, 3, 4, 4), [[0.0, 0, 1e9, 1]], [0], (2, 2), "1e[+]09 cells of the map long"),
        ((1, 3, 4, 4), [[0.0, 0, 1, 1]], [0], (0, 2), r"output_size is \(0, 2\)"),
    ],
)
def test_impossible_arguments_are_refused(
    features: tuple[int, ...],
    regions: list[list[float]],
    images: list[int],
    size: tuple[int, int],
    message: str,
    device: str,
) -> None:
    arguments = [each.to(device) for each in (torch.ones(features), torch.tensor(regions), torch.tensor(images))]
    with pytest.raises(ConfigurationError, match=message):
        roi_align(*arguments, size)
