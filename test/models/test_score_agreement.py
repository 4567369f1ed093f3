"""Two executions of a classifier agree if no score differs by more than 0.002, and the best class is the same."""

from __future__ import annotations

import torch
from torch import Tensor

from split_infer_ros.models.classifier import classify
from split_infer_ros.models.score_agreement import ScoreDifference, compare_scores


def compared(found: list[list[float]], expected: list[list[float]]) -> ScoreDifference:
    decode = classify(8, 8, gives_probabilities=True)
    outputs: list[tuple[Tensor, ...]] = [(torch.tensor(found),), (torch.tensor(expected),)]
    return compare_scores(decode, *outputs)


def test_scores_within_the_limit_agree() -> None:
    found = compared([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]], [[0.701, 0.199, 0.1], [0.1, 0.6, 0.3]])
    assert found.agrees
    assert found.is_enough
    assert str(found) == "scores by up to 0.001"


def test_another_score_is_no_rounding() -> None:
    found = compared([[0.7, 0.2, 0.1]], [[0.71, 0.19, 0.1]])
    assert not found.agrees
    assert not found.other_classes


def test_another_best_class_is_no_rounding() -> None:
    found = compared([[0.4, 0.5, 0.1]], [[0.5, 0.4, 0.1]])
    assert not found.agrees
    assert str(found).endswith("and the best class in 1 images")


def test_a_tie_may_have_either_best_class() -> None:
    assert compared([[0.4501, 0.4499, 0.1]], [[0.4499, 0.4501, 0.1]]).agrees


def test_flat_scores_are_not_enough() -> None:
    flat = [[0.001 * (index % 2) for index in range(1000)]]
    found = compared(flat, flat)
    assert found.agrees
    assert not found.is_enough
