"""Finds the best-scored candidates of each image, as many as an operator asks for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, Union

import numpy as np

from split_infer_ros.buffers.host_arrays import Flags, Floats, Integers, as_tensor, to_host

if TYPE_CHECKING:
    from torch import Tensor

Scores: TypeAlias = Union[Floats, "Tensor"]  # an array on the host, or a tensor on a GPU


class BestCandidates(NamedTuple):
    """M candidates of N images, ordered by image, then by descending score, then by ascending index.

    Attributes:
        images: int64 (M,), the image of each candidate.
        indices: int64 (M,), the index of each candidate in the flattened scores of its image.
        has_more: bool (N,), whether each image has, or may have, further candidates that come behind these in the
            order.
    """

    images: Integers
    indices: Integers
    has_more: Flags


def best_candidates(scores: Scores, count: int, threshold: float) -> BestCandidates:
    """Returns the ``count`` best scores above ``threshold`` of each image, or fewer if there are not that many.

    A score that is NaN is left out. The best scores belong to the boxes whose own best score is high, so only those
    boxes are searched.

    Args:
        scores: floating (N, n, C), the scores of N images with n boxes and C classes. Each dimension is 1 or more, with
            any strides.
        count: the number of scores, 1 or more.
        threshold: the scores of candidates must lie above this.
    """
    images, boxes_per_image, classes = scores.shape
    box_scores = _best_score_of_box(scores)
    eligible = box_scores > threshold
    has_more = np.zeros(images, bool)
    lowest = None  # the lowest score of each image that can be among the best
    if count < boxes_per_image and np.count_nonzero(eligible) > images * count:
        place = boxes_per_image - count
        lowest = np.partition(np.where(eligible, box_scores, -np.inf), place, axis=1)[:, place]
        eligible &= box_scores >= lowest[:, None]
        has_more = lowest > threshold
    image, box = _row_and_column(np.flatnonzero(eligible), boxes_per_image, images)
    if classes > 1:
        rows = _class_scores(scores, image, box)
        fits = rows > threshold
        if lowest is not None:
            fits &= rows >= lowest[image, None]
        places = np.flatnonzero(fits)
        row, label = _row_and_column(places, classes, len(rows))
        image, indices, values = image[row], box[row] * classes + label, rows.ravel()[places]
    else:
        indices, values = box, box_scores[image, box]
    order = (-values).argsort(kind="stable")
    if images > 1:
        order = order[image[order].argsort(kind="stable")]
    image, indices = image[order], indices[order]
    per_image = np.bincount(image, minlength=images)
    if per_image.max() > count:
        is_best = np.arange(len(image)) - (per_image.cumsum() - per_image)[image] < count
        image, indices, has_more = image[is_best], indices[is_best], has_more | (per_image > count)
    return BestCandidates(image, indices, has_more)


def keep_best_per_class(scores: Floats, count: int) -> Floats:
    """Returns a copy of scores that keeps the best ones of each image and class. All others become -inf.

    Of equal scores, the first are kept. Scores that are NaN become -inf as well.

    Args:
        scores: floating (N, n, C), the scores of N images with n boxes and C classes.
        count: how many scores are kept for each image and class, less than n.
    """
    by_class = np.array(scores.transpose(0, 2, 1), order="C")
    by_class[np.isnan(by_class)] = -np.inf
    lowest_kept = np.partition(by_class, by_class.shape[2] - count, axis=2)[:, :, -count, None]
    dropped = by_class < lowest_kept
    if (np.count_nonzero(dropped, axis=2) < by_class.shape[2] - count).any():
        ties = by_class == lowest_kept
        kept_ties = count - np.count_nonzero(by_class > lowest_kept, axis=2)
        dropped |= ties & (ties.cumsum(2) > kept_ties[..., None])
    by_class[dropped] = -np.inf
    best: Floats = by_class.transpose(0, 2, 1)
    return best


def _best_score_of_box(scores: Scores) -> Floats:
    """Returns the best score of each box, (N, n). It is NaN or -inf if all scores of the box are NaN."""
    if scores.shape[2] == 1:
        return to_host(scores[:, :, 0])
    if isinstance(scores, np.ndarray):
        best: Floats = np.fmax.reduce(scores, axis=2)
        return best
    return to_host(scores.masked_fill(scores.isnan(), -math.inf).amax(2))


def _class_scores(scores: Scores, image: Integers, box: Integers) -> Floats:
    """Returns the scores (B, C) of B boxes. Each box is given by its image and its place in that image."""
    if isinstance(scores, np.ndarray):
        return scores[image, box]
    return to_host(scores[as_tensor(image).to(scores.device), as_tensor(box).to(scores.device)])


def _row_and_column(places: Integers, columns: int, rows: int) -> tuple[Integers, Integers]:
    """Divides places in a flattened (rows, columns) array into row and column."""
    return (np.zeros_like(places), places) if rows == 1 else divmod(places, columns)
