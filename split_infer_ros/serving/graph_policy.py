"""Which executions of several models are recorded ahead, which graphs serve one, and which graphs give way.

What is recorded while frames wait holds all of them up, so it never is. What the scheduler may decide on is recorded
before; what was not foreseen takes the graphs that each model has of its own, and is recorded once nothing comes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from split_infer_ros.serving.execution_costs import NO_MORE, ExecutionCosts, Group, group
from split_infer_ros.serving.scheduler import Rules

MOST_FORESEEN = 32  # combinations that are recorded ahead, at some tenths of a second each


def padded(count: int) -> int:
    """The power of two that is no smaller, so that few graphs do for all batches."""
    return 1 << (count - 1).bit_length()


def as_recorded(counts: Mapping[str, int]) -> Group:
    """The combination that serves so many images of each model."""
    return group({model: padded(count) for model, count in counts.items()})


def graphs_for(combination: Group, kept: Collection[Group]) -> tuple[Group, ...]:
    """The graphs that serve a combination, side by side; a model that none of them has runs kernel by kernel.

    Its own graph, or else each model's own: they fill the GPU as well, with a launch each and not one for all.

    Args:
        combination: as recorded.
        kept: those that there are.
    """
    if combination in kept:
        return (combination,)
    return tuple((part,) for part in combination if (part,) in kept)


def make_way(kept: Mapping[Group, int], newcomer: Group, nbytes: int, most_bytes: int) -> tuple[Group, ...] | None:
    """The graphs that are dropped for one more; None if there is no place for it.

    Those of several models go first, and only they for another one of several: it saves a few launches, where a model's
    own graph serves in every combination that is not recorded.

    Args:
        kept: bytes of those that there are, the least lately used first.
        newcomer: to be kept.
        nbytes: that it takes.
        most_bytes: that all may take.
    """
    surplus = sum(kept.values()) + nbytes - most_bytes
    several = [found for found in kept if len(found) > 1]
    able = several if len(newcomer) > 1 else [*several, *(found for found in kept if len(found) == 1)]
    gone = []
    for combination in able:
        if surplus <= 0:
            break
        gone.append(combination)
        surplus -= kept[combination]
    return tuple(gone) if surplus <= 0 else None


def foreseen(costs: ExecutionCosts, rules: Rules) -> Iterator[Group]:
    """What of several models the scheduler may make one execution, as recorded; what takes the fewest requests first.

    Args:
        costs: of all models; those that were not seen to gain from being one execution are never made one.
        rules: by which requests will be put together.
    """
    if not rules.fuse:
        return
    together: dict[tuple[str, ...], None] = {}
    for measured, seconds in costs.fused_s.items():
        if (1 + NO_MORE) * seconds <= sum(costs.batch_s(model, count) for model, count in measured):
            together[tuple(model for model, _ in measured)] = None
    most = {model: min(rules.most, costs.best_size(model, rules.window)) for model in costs.alone_s}
    for requests in range(2, rules.window + 1):
        for models in together:
            for sizes in _sizes([most[model] for model in models], requests):
                yield group(dict(zip(models, sizes, strict=True)))


def _sizes(most: Sequence[int], requests: int) -> Iterator[tuple[int, ...]]:
    """Padded sizes of batches of at most so many, which so many requests are just enough for."""
    if not most:
        if not requests:
            yield ()
        return
    first, *others = most
    size = 1
    while (least := size // 2 + 1) <= min(first, requests - len(others)):
        for rest in _sizes(others, requests - least):
            yield (size, *rest)
        size *= 2
