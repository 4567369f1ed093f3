"""Results of a whole model are judged by what they detect, and by their values where they detect too little."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from split_infer_ros.models.candidates import suppress_all
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.classifier import classify
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.score_agreement import ScoreDifference
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.result_agreement import compare_results, is_classifier
from split_infer_ros.split.sample_images import sample_images

DETECTOR = replace(find_model("shapes"), decode=suppress_all)
LIMIT = 1e-4


def results(count: int, *, off: float = 0.0) -> list[tuple[Tensor, ...]]:
    """Boxes up to 640 pixels in a row, as the network gives them: scores, boxes, labels. The first one may be off."""
    left = torch.linspace(0, 600, count)
    boxes = torch.stack([left, torch.zeros(count), left + 10, torch.full((count,), 640.0)], 1)
    boxes[0, 0] += off
    return [(torch.full((1, count), 0.8), boxes[None], torch.zeros(1, count, dtype=torch.int64))]


def never() -> float:
    pytest.fail("values do not decide")


@pytest.mark.parametrize(("off", "agrees"), [(0.07, True), (0.6, False)])
def test_detections_decide_where_there_are_ten(off: float, agrees: bool) -> None:
    """0.07 pixels are more than the ten-thousandth of the largest value that tensors may differ by."""
    found = compare_results(DETECTOR, results(12, off=off), results(12), classifies=False)
    assert found.largest > LIMIT
    assert found.agrees(never) == agrees
    assert str(found) == f"boxes by up to {off:g} pixels, scores by 0"


@pytest.mark.parametrize(("limit", "agrees"), [(1e-4, False), (1e-3, True)])
def test_values_decide_where_there_are_fewer(limit: float, agrees: bool) -> None:
    found = compare_results(DETECTOR, results(5, off=0.07), results(5), classifies=False)
    assert found.agrees(lambda: limit) == agrees
    assert str(found).endswith("of the largest")
    assert found.allowed_text(lambda: limit) == f"{limit:g} is allowed"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_never_agree(value: float) -> None:
    broken = results(12)
    broken[0][1][0, 3, 1] = value
    found = compare_results(DETECTOR, broken, results(12), classifies=False)
    assert not found.agrees(lambda: math.inf)


def test_values_decide_where_the_decoder_fails(caplog: pytest.LogCaptureFixture) -> None:
    entry = replace(DETECTOR, decode=classify(8, 8))
    found = compare_results(entry, results(12, off=0.07), results(12), classifies=False)
    assert found.agrees(lambda: 1e-3)
    assert not found.agrees(lambda: LIMIT)
    assert "the decoder fails for drawn scenes" in caplog.text


def test_scores_decide_for_a_classifier() -> None:
    entry: ModelEntry = replace(find_model("resnet18"), decode=classify(8, 8), labels=("a", "b", "c"))
    expected = [(torch.tensor([[9.0, 8.0, 1.0]]),)]
    found = compare_results(entry, [(torch.tensor([[9.005, 8.0, 1.0]]),)], expected, classifies=True)
    assert found.largest > LIMIT
    assert isinstance(found.decoded, ScoreDifference)
    assert found.agrees(never)


def test_a_classifier_gives_one_score_for_each_label() -> None:
    names = {"squeezenet1_0": True, "shapes": False}
    for name, classifies in names.items():
        assert is_classifier(load_model(ModelSpec(name, "random", "cpu"))) == classifies


def test_sample_images_are_the_models_input_and_repeat() -> None:
    entry = find_model("shapes")
    images = sample_images(entry, 2)
    assert images.shape == (2, *entry.image_shape)
    assert images.dtype == np.float32
    assert not np.array_equal(images[0], images[1])
    assert np.array_equal(sample_images(entry, 2), images)
