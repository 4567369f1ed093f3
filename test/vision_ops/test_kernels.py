from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from interpreted import Call, interpreter

from split_infer_ros.vision_ops.segmented_argsort import pack
from split_infer_ros.vision_ops.suppression import unsuppressed

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


@pytest.fixture(scope="module")
def call() -> Iterator[Call]:
    with interpreter() as call:
        yield call


@pytest.mark.parametrize("shape", [(1,), (64,), (65,), (3, 300), (2, 2, 9)])
def test_sums_in_stages_equal_those_of_numpy(call: Call, shape: tuple[int, ...]) -> None:
    values = torch.randint(-(10**12), 10**12, shape, generator=torch.Generator().manual_seed(0))
    found = call("prefix_sum", "sum_in_stages", values, 16)
    assert found.dtype == torch.int64
    np.testing.assert_array_equal(found, np.cumsum(values.numpy(), -1))
    floats = values.float() / 1e12
    found = call("prefix_sum", "sum_in_stages", floats, 16)
    np.testing.assert_allclose(found, np.cumsum(floats.numpy(), -1), 1e-4, 1e-5)


def test_sums_are_infinite_or_nan_from_there_on(call: Call) -> None:
    values = torch.zeros(100)
    values[[20, 70]] = torch.tensor([torch.inf, torch.nan])
    torch.testing.assert_close(call("prefix_sum", "sum_in_stages", values, 16), values.cumsum(0), equal_nan=True)


@pytest.mark.parametrize(
    "lengths", [[1], [16], [17, 0, 15], [3] * 40, [1, 100, 0, 0, 131, 2], [0, 256, 0], [255, 258, 1]], ids=str
)
@pytest.mark.parametrize("levels", [1, 4, 1000])
def test_merged_blocks_are_in_stable_order(call: Call, lengths: list[int], levels: int) -> None:
    ends = torch.tensor(lengths).cumsum(0)
    segments = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    values = torch.randint(-levels, levels, (len(segments),), generator=torch.Generator().manual_seed(levels)).float()
    keys = pack(values, segments, descending=True)
    starts = (ends - torch.tensor(lengths))[segments]
    order = call("segmented_argsort", "argsort_by_merging", keys, starts, ends[segments], 16)
    np.testing.assert_array_equal(order, np.lexsort((-values, segments)))


@pytest.mark.parametrize("iou_threshold", [0.0, 0.3, 1.0])
def test_a_batch_is_suppressed_as_on_the_host(call: Call, iou_threshold: float) -> None:
    random = np.random.default_rng(0)
    counts = np.array([20, 0, 1, 45])
    corners = random.integers(0, 12, (counts.sum(), 2))
    boxes = np.hstack([corners, corners + random.integers(-1, 9, corners.shape)]).astype(np.float32)
    boxes[random.random(boxes.shape) < 0.02] = np.nan
    boxes[random.random(boxes.shape) < 0.02] = np.inf
    labels, images = random.integers(0, 3, len(boxes)), np.arange(len(counts)).repeat(counts)
    found = call(
        "suppression",
        "unsuppressed_batch",
        torch.from_numpy(boxes),
        torch.from_numpy(labels),
        torch.from_numpy(np.append(0, counts.cumsum())),
        max_count=45,
        iou_threshold=iou_threshold,
    )
    expected = unsuppressed(boxes, images, labels, iou_threshold=iou_threshold)
    np.testing.assert_array_equal(found, expected)
    assert expected.all() == (iou_threshold == 1.0)
