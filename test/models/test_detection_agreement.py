"""Two executions of a detector agree if what each keeps is a candidate of the other, up to half a pixel and 0.002.

Candidates are drawn and moved within these limits. What suppression then keeps may differ, as it does where scores are
nearly equal or an overlap is at the limit. Suppression itself is the package's own.
"""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from split_infer_ros.models.candidates import Candidates, suppress
from split_infer_ros.models.detection_agreement import (
    MAX_BOX_DIFFERENCE,
    MAX_SCORE_DIFFERENCE,
    MIN_DETECTIONS,
    compare_detections,
    match,
)
from split_infer_ros.models.detections import Detections, Limits

INSIDE = 0.9  # of a limit, so that the rounding of float32 does not cross it
Raw = tuple[np.ndarray, np.ndarray, np.ndarray]  # boxes (n, 4), scores (n,), labels (n,)


def decode(outputs: Raw, limits: Limits) -> list[Detections]:
    boxes, scores, labels = outputs
    candidates = Candidates(
        torch.from_numpy(boxes.astype(np.float32))[None],
        torch.from_numpy(scores.astype(np.float32))[None],
        torch.from_numpy(labels)[None],
    )
    return suppress(candidates, limits)


def crowd(seed: int, count: int, spacing: float) -> Raw:
    """Boxes of 20 to 60 pixels with two labels. The smaller the spacing is, the more of them overlap."""
    random = np.random.default_rng(seed)
    corner = random.uniform(0, spacing * np.sqrt(count), (count, 2))
    boxes = np.concatenate([corner, corner + random.uniform(20, 60, (count, 2))], 1)
    return boxes, random.uniform(0.2, 1.0, count), random.integers(0, 2, count)


def nudged(raw: Raw, seed: int, share: float = INSIDE) -> Raw:
    """The candidates in another order, each moved by up to a share of what is allowed."""
    random = np.random.default_rng(seed)
    boxes, scores, labels = raw
    order = random.permutation(len(scores))
    boxes = boxes + share * MAX_BOX_DIFFERENCE * random.uniform(-1, 1, boxes.shape)
    scores = scores + share * MAX_SCORE_DIFFERENCE * random.uniform(-1, 1, scores.shape)
    return boxes[order], scores[order], labels[order]


seeds = st.integers(0, 2**32 - 1)


@settings(deadline=None)
@given(seeds, seeds, st.integers(1, 200), st.sampled_from([5.0, 20.0, 100.0]))
def test_what_rounding_explains_agrees(seed: int, other: int, count: int, spacing: float) -> None:
    """In a crowd, other candidates may be kept. Each of them is a candidate of the other side as well."""
    raw = crowd(seed, count, spacing)
    found = compare_detections(decode, nudged(raw, other), raw)
    assert found.agrees, str(found)


@settings(deadline=None)
@given(seeds, seeds, st.integers(12, 100), st.sampled_from([5.0, 20.0, 100.0]), st.sampled_from([-1, 1]))
def test_one_box_that_is_off_is_seen(seed: int, other: int, count: int, spacing: float, sign: int) -> None:
    """The best box of all is always kept. Two pixels from its place there is no other box of nearly its score."""
    raw = crowd(seed, count, spacing)
    raw[1][raw[1].argmax()] = 1.0
    raw[1][raw[1] < 1.0] *= 0.9
    moved = raw[0].copy()
    moved[raw[1].argmax(), 0] += 2 * sign
    found = compare_detections(decode, (moved, *raw[1:]), raw)
    assert not found.agrees
    assert found.missing or found.boxes > MAX_BOX_DIFFERENCE


@settings(deadline=None)
@given(seeds, st.integers(12, 100))
def test_a_score_or_a_class_that_is_off_is_seen(seed: int, count: int) -> None:
    boxes, scores, labels = crowd(seed, count, 100.0)
    scores[0] = 1.0
    scores[1:] *= 0.9
    lower, other = scores.copy(), labels.copy()
    lower[0] -= 0.05
    other[0] += 5
    assert not compare_detections(decode, (boxes, lower, labels), (boxes, scores, labels)).agrees
    wrong = compare_detections(decode, (boxes, scores, other), (boxes, scores, labels))
    assert not wrong.agrees
    assert wrong.missing, "the class of the best one has no counterpart"


def row(count: int, score: float = 0.8) -> Raw:
    """Boxes of 10 pixels that do not overlap, all of one class and one score."""
    left = 20.0 * np.arange(count)
    boxes = np.stack([left, np.zeros(count), left + 10, np.full(count, 10.0)], 1)
    return boxes, np.full(count, score), np.zeros(count, np.int64)


def test_differences_are_told_in_pixels_and_scores() -> None:
    boxes, scores, labels = row(12)
    moved, lower = boxes.copy(), scores.copy()
    moved[3, 2] += 0.07
    lower[5] -= 0.0003
    found = compare_detections(decode, (moved, lower, labels), (boxes, scores, labels))
    assert found.agrees
    assert found.is_enough
    assert str(found) == "boxes by up to 0.07 pixels, scores by 0.0003"


def test_missing_detections_are_counted() -> None:
    boxes, scores, labels = row(12)
    found = compare_detections(decode, (boxes[2:], scores[2:], labels[2:]), (boxes, scores, labels))
    assert (found.missing, found.compared) == (2, 12)
    assert "2 of 12 detections are missing" in str(found)
    nothing = compare_detections(decode, (boxes[:0], scores[:0], labels[:0]), (boxes, scores, labels))
    assert nothing.missing == 12
    fewer = compare_detections(decode, row(12, score=0.3), row(13, score=0.3))
    assert not fewer.agrees, "what has the last score is missing, unless as many candidates are there"


def test_few_detections_are_not_enough() -> None:
    few = row(MIN_DETECTIONS - 1)
    found = compare_detections(decode, few, few)
    assert found.agrees
    assert not found.is_enough


def test_lower_scores_count_where_high_ones_are_few() -> None:
    low = row(12, score=0.06)
    found = compare_detections(decode, low, low)
    assert (found.compared, found.floor) == (12, 0.05)
    high = row(12)
    assert compare_detections(decode, high, high).floor == 0.25


def test_candidates_of_one_score_may_lie_behind_a_limit() -> None:
    """Untrained networks give thousands of nearly equal scores. Which of them are decoded is chance."""
    many = row(3000, score=0.5)
    found = compare_detections(decode, nudged(many, 1), nudged(many, 2))
    assert found.agrees
    assert found.compared < 100, "those that chance left out are not counted"


def test_numbers_that_are_not_finite_are_left_out() -> None:
    boxes, scores, labels = row(12)
    boxes[0, 2] = np.inf
    found = compare_detections(decode, (boxes, scores, labels), (boxes, scores, labels))
    assert (found.compared, found.agrees) == (11, True)


@settings(deadline=None)
@given(seeds, st.integers(0, 8), st.integers(0, 8))
def test_as_many_as_possible_are_matched(seed: int, rows: int, columns: int) -> None:
    """Compared with the best of all assignments, which scipy finds."""
    from scipy.optimize import linear_sum_assignment

    random = np.random.default_rng(seed)
    fits, distances = random.random((rows, columns)) < 0.4, random.random((rows, columns))
    partners = match(fits, distances)
    taken = partners[partners >= 0]
    assert len(set(taken.tolist())) == len(taken)
    assert all(fits[index, partner] for index, partner in enumerate(partners) if partner >= 0)
    best = linear_sum_assignment(fits.astype(float), maximize=True)
    assert len(taken) == int(fits[best].sum())
