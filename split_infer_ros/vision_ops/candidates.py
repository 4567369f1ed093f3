"""The best candidates of each image, as far as they are wanted."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

SORTED = 2048  # scores an image up to which sorting them all costs less than finding the best first


class Candidates(NamedTuple):
    """Candidates of N images, up to K an image, in order: descending score, of equal ones ascending index.

    Attributes:
        indices: int64 (N, K) into ``scores[i].flatten()``.
        valid: bool (N, K), which of them are candidates; of each image the first ones.
        more: bool (N,), which images have further candidates, all of them behind these in the order.
    """

    indices: Tensor
    valid: Tensor
    more: Tensor


def best_candidates(scores: Tensor, count: int, threshold: float) -> Candidates:
    """Of each image up to ``count`` of the scores above ``threshold``, the best; NaN is no score.

    Args:
        scores: floating (N, n, C), none of them 0, with any strides.
        count: 1 or more. Where scores are equal there can be fewer candidates although there are more.
        threshold: scores up to it are no candidates.
    """
    total = scores.shape[1] * scores.shape[2]
    if total <= SORTED:
        # Not descending, for which NaN is the best: so it is the last, and not above the threshold.
        values, indices = scores.flatten(1).neg().sort(dim=1, stable=True)
        valid = values < -threshold
        more = valid[:, count] if total > count else valid.new_zeros(len(scores))
        return Candidates(indices[:, :count], valid[:, :count], more)
    of_box = scores.amax(2) if scores.shape[2] > 1 else scores.squeeze(2)
    if bool(of_box.isnan().any()):
        scores = without_nan(scores)  # for topk it is the best
        of_box = scores.amax(2)
    # The best candidates are among those of the boxes with the best ones. Places are sorted each time, so that equal
    # scores come in the order of their indices.
    able = int((of_box > threshold).sum(1).max())
    chosen = of_box.topk(max(1, min(count, able)), dim=1, sorted=False).indices.sort(dim=1).values
    theirs = scores.gather(1, chosen.unsqueeze(2).expand(-1, -1, scores.shape[2])).flatten(1)
    places = theirs.topk(min(count, theirs.shape[1]), dim=1, sorted=False).indices.sort(dim=1).values
    values, order = theirs.gather(1, places).sort(dim=1, descending=True, stable=True)
    places = places.gather(1, order)
    indices = chosen.gather(1, places // scores.shape[2]) * scores.shape[2] + places % scores.shape[2]
    if theirs.shape[1] < count or total <= count:  # these are all
        return Candidates(indices, values > threshold, of_box.new_zeros(len(scores), dtype=torch.bool))
    # Of several equal scores at the end topk takes some, it is not defined which: those are left for the next time.
    last = values[:, -1:]
    return Candidates(indices, values > last.clamp(min=threshold), last.squeeze(1) > threshold)


def first_of_each(scores: Tensor, most: int) -> Tensor:
    """Scores (N, n, C) in which those that are not among the ``most`` best of their image and class are -inf."""
    scores = without_nan(scores)
    last = scores.topk(most, dim=1).values[:, -1:]
    above, ties = scores > last, scores == last
    room = most - above.sum(1, keepdim=True)
    return scores.where(above | (ties & (ties.cumsum(1) <= room)), -math.inf)


def without_nan(scores: Tensor) -> Tensor:
    """Scores in which NaN is -inf."""
    return scores.masked_fill(scores.isnan(), -math.inf)
