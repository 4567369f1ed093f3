from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from split_infer_ros.vision_ops.candidates import best_candidates, keep_best_per_class


@pytest.mark.parametrize("classes", [1, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_tensors_and_arrays_give_the_same_candidates(classes: int, dtype: torch.dtype) -> None:
    scores = torch.rand((3, 50, classes), generator=torch.Generator().manual_seed(classes)).to(dtype)
    scores[0, ::3, 0] = math.nan
    for count in (1, 20, 1000):
        found = best_candidates(scores, count, 0.3)  # scores on a GPU are a tensor
        expected = best_candidates(scores.float().numpy(), count, 0.3)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
        values = scores.flatten(1)[found.images, found.indices]
        assert (values > 0.3).all()
        assert (values.diff()[np.diff(found.images) == 0] <= 0).all()


def test_equal_scores_are_ordered_by_index() -> None:
    found = best_candidates(np.ones((2, 30, 3), np.float32), 7, 0.5)
    assert found.images.tolist() == [0] * 7 + [1] * 7
    assert found.indices.tolist() == [*range(7)] * 2
    assert found.has_more.all()


def test_the_first_of_the_best_of_each_class_remain() -> None:
    scores = np.array([[[1.0, 0], [3, 0], [3, 0], [math.nan, 0], [2, 5]]])
    remaining = keep_best_per_class(scores, 2)[0]
    assert remaining[:, 0].tolist() == [-math.inf, 3, 3, -math.inf, -math.inf]
    assert remaining[:, 1].tolist() == [0, -math.inf, -math.inf, -math.inf, 5]
    assert scores[0, 0].tolist() == [1, 0]
