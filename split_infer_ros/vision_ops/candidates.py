"""The best candidates of each image, as far as they are wanted."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from split_infer_ros.vision_ops.arrays import Flags, Floats, Integers, to_host

Scores = Floats | Tensor  # on the host; a tensor is one of a GPU


class BestCandidates(NamedTuple):
    """Candidates by image, and then by descending score, of equal scores by ascending index.

    Attributes:
        images: int64 (M,).
        indices: int64 (M,) into the image's flattened scores.
        more: bool (N,), images that have further candidates, or may: those come later in the order.
    """

    images: Integers
    indices: Integers
    more: Flags


def best_candidates(scores: Scores, count: int, threshold: float) -> BestCandidates:
    """Of each image the ``count`` best scores above ``threshold``, or as many as there are; NaN is no score.

    The best scores are among those of the boxes with the best ones, so others' are not looked at.

    Args:
        scores: floating (N, n, C), none of them 0, with any strides.
        count: 1 or more.
        threshold: scores up to it are no candidates.
    """
    images, each, classes = scores.shape
    of_box = _best_of_box(scores)
    able = of_box > threshold
    more = np.zeros(images, bool)
    least = None
    if count < each and np.count_nonzero(able) > images * count:
        offered = np.where(able, of_box, -np.inf)
        least = np.partition(offered, each - count, axis=1)[:, each - count]
        able &= offered >= least[:, None]
        more = least > threshold
    image, box = _divided(np.flatnonzero(able), each, images)
    if classes > 1:
        rows = _rows(scores, image, box)
        fit = rows > threshold
        if least is not None:
            fit &= rows >= least[image, None]
        found = np.flatnonzero(fit)
        row, label = _divided(found, classes, len(rows))
        image, indices, values = image[row], box[row] * classes + label, rows.ravel()[found]
    else:
        indices, values = box, of_box[image, box]
    order = (-values).argsort(kind="stable")
    if images > 1:
        order = order[image[order].argsort(kind="stable")]
    image, indices = image[order], indices[order]
    found_of = np.bincount(image, minlength=images)
    if found_of.max() > count:
        first = np.arange(len(image)) - (found_of.cumsum() - found_of)[image] < count
        image, indices, more = image[first], indices[first], more | (found_of > count)
    return BestCandidates(image, indices, more)


def first_of_each(scores: Floats, most: int) -> Floats:
    """Scores (N, n, C) in which those that are not among the ``most`` < n best of their image and class are -inf."""
    own = np.array(scores.transpose(0, 2, 1), order="C")
    own[np.isnan(own)] = -np.inf
    last = np.partition(own, own.shape[2] - most, axis=2)[:, :, -most, None]
    beyond = own < last
    if (np.count_nonzero(beyond, axis=2) < own.shape[2] - most).any():  # of equal scores the first ones
        ties = own == last
        room = most - np.count_nonzero(own > last, axis=2)
        beyond |= ties & (ties.cumsum(2) > room[..., None])
    own[beyond] = -np.inf
    first: Floats = own.transpose(0, 2, 1)
    return first


def _best_of_box(scores: Scores) -> Floats:
    """(N, n), NaN where there is no better."""
    if scores.shape[2] == 1:
        return to_host(scores[:, :, 0])
    if isinstance(scores, np.ndarray):
        best: Floats = np.fmax.reduce(scores, axis=2)
        return best
    return to_host(scores.masked_fill(scores.isnan(), -math.inf).amax(2))


def _rows(scores: Scores, image: Integers, box: Integers) -> Floats:
    """(B, C), those of each of these boxes."""
    if isinstance(scores, np.ndarray):
        return scores[image, box]
    return to_host(scores[torch.from_numpy(image).to(scores.device), torch.from_numpy(box).to(scores.device)])


def _divided(places: Integers, length: int, rows: int) -> tuple[Integers, Integers]:
    """Places in rows of that length: which row, and where in it."""
    return (np.zeros_like(places), places) if rows == 1 else divmod(places, length)
