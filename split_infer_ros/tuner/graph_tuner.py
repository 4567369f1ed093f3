"""The graph tuner (§3.2.3): of each segment of a network the best form, weighed against changes of layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from split_infer_ros.split.form import CONTIGUOUS, CONVOLUTIONS, EAGER
from split_infer_ros.split.model import SplitModel
from split_infer_ros.tuner.spaces import SEGMENTS
from split_infer_ros.tuner.trial_process import Runner
from split_infer_ros.tuning.dynamic_programming import best_chain


def best_segments(
    model: SplitModel, runner: Runner, config: Mapping[str, Any], about: Mapping[str, Any], limit_s: float
) -> dict[str, Any] | None:
    """The configuration whose segments add up to the least, from times measured now; None where they are all alike.

    Args:
        model: whose segments lie between neighbouring cuts.
        runner: where they are timed, once for each kind of convolutions.
        config: of the network, for what is not the segments' own; a compiler has none.
        about: the batch size.
        limit_s: for all of it.
    """
    plain = {**config, "compiler": EAGER, "folding": True}
    costs: dict[str, Sequence[float]] = {}
    conversions: dict[str, Sequence[float]] = {}
    for kind in CONVOLUTIONS:
        outcome = runner.run(SEGMENTS, {**plain, "convolutions": kind}, about, limit_s / len(CONVOLUTIONS))
        if outcome.error is None:
            costs[kind], conversions[kind] = outcome.costs, outcome.facts["conversions"]
    ends = [cut.name for cut in model.cuts[1:]]
    if not costs:
        return None

    def conversion(index: int, before: str, after: str) -> float:
        return conversions[after][index] if (before == CONTIGUOUS) != (after == CONTIGUOUS) else 0.0

    _, kinds = best_chain([{kind: costs[kind][index] for kind in costs} for index in range(len(ends))], conversion)
    runs = [
        [kind, end]
        for index, (kind, end) in enumerate(zip(kinds, ends, strict=True))
        if index + 1 == len(ends) or kinds[index + 1] != kind
    ]
    return None if len(runs) == 1 else {**plain, "segments": runs}
