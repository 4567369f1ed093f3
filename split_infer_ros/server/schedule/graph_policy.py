"""Decides which combinations are recorded as graphs in advance, which graphs run a combination, and which are evicted.

Recording delays all frames that wait, so nothing is recorded while frames wait. Combinations that the scheduler may
choose are recorded in advance. Any other combination uses the graphs of its single models, and is recorded when no
frames come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from split_infer_ros.server.schedule.execution_costs import NOISE_MARGIN, Combination, ExecutionCosts, combination_of
from split_infer_ros.server.schedule.graph_sizes import padded_size
from split_infer_ros.server.schedule.scheduler import Rules

MAX_FORESEEN = 32  # the most combinations that are recorded in advance; each takes some tenths of a second


def padded_combination(counts: Mapping[str, int]) -> Combination:
    """Returns the combination of the graph that serves these numbers of images of the models."""
    return combination_of({model: padded_size(count, len(counts)) for model, count in counts.items()})


def graphs_for(counts: Mapping[str, int], recorded: Collection[Combination]) -> tuple[Combination, ...]:
    """Returns the graphs that run an execution. Models without a graph are launched kernel by kernel.

    The result is the combination's own graph, or else the graphs of its single models. The graphs of single models run
    concurrently and also fill the GPU, but need one launch each.

    Args:
        counts: the number of images of each model.
        recorded: the combinations that have graphs.
    """
    combination = padded_combination(counts)
    if combination in recorded:
        return (combination,)
    serving = []
    for model, count in counts.items():
        sizes = (padded_size(count), padded_size(count, 2))  # the batch's own size, or the next power of two
        serving += [((model, size),) for size in sizes if ((model, size),) in recorded][:1]
    return tuple(serving)


def graphs_to_evict(
    graph_bytes: Mapping[Combination, int], new: Combination, *, new_bytes: int, max_bytes: int
) -> tuple[Combination, ...] | None:
    """Returns the graphs to evict for a new graph; None if there is no room for the new graph even then.

    Graphs of several models are evicted first. A new graph of several models evicts no graph of a single model, because
    it only saves a few launches. The graph of a single model serves every combination that is not recorded.

    Args:
        graph_bytes: the bytes of each graph, the least recently used graph first.
        new: the combination of the new graph.
        new_bytes: the bytes of the new graph.
        max_bytes: the most bytes of all graphs.
    """
    excess = sum(graph_bytes.values()) + new_bytes - max_bytes
    candidates = [combination for combination in graph_bytes if len(combination) > 1]
    if len(new) == 1:
        candidates += [combination for combination in graph_bytes if len(combination) == 1]
    evicted = []
    for combination in candidates:
        if excess <= 0:
            break
        evicted.append(combination)
        excess -= graph_bytes[combination]
    return tuple(evicted) if excess <= 0 else None


def foreseen_combinations(costs: ExecutionCosts, rules: Rules) -> Iterator[Combination]:
    """Yields the combinations of several models that the scheduler may fuse, the fewest requests first.

    The numbers of images are the batch sizes of graphs (``padded_size``). Models are fused only if a measurement showed
    that this saves time.

    Args:
        costs: the costs of all models.
        rules: how requests will be combined.
    """
    if not rules.fuse:
        return
    fused_models: dict[tuple[str, ...], None] = {}  # a set that keeps its order
    for combination, seconds in costs.fused_s.items():
        if (1 + NOISE_MARGIN) * seconds <= sum(costs.batch_s(model, count) for model, count in combination):
            fused_models[tuple(model for model, _ in combination)] = None
    max_counts = {
        model: min(rules.max_batch_size, costs.best_batch_size(model, rules.window)) for model in costs.alone_s
    }
    for num_requests in range(2, rules.window + 1):
        for models in fused_models:
            for sizes in _padded_sizes([max_counts[model] for model in models], num_requests):
                yield combination_of(dict(zip(models, sizes, strict=True)))


def _padded_sizes(max_counts: Sequence[int], num_requests: int) -> Iterator[tuple[int, ...]]:
    """Yields the padded batch sizes for which ``num_requests`` is the smallest number of requests that needs them.

    Args:
        max_counts: how many requests each batch may have.
        num_requests: the fewest requests that are padded to these sizes, over all batches.
    """
    if not max_counts:
        if not num_requests:
            yield ()
        return
    max_count, *other_max_counts = max_counts
    size = 1
    min_count = 1  # the fewest requests that are padded to this size
    while min_count <= min(max_count, num_requests - len(other_max_counts)):
        for other_sizes in _padded_sizes(other_max_counts, num_requests - min_count):
            yield (size, *other_sizes)
        size *= 2
        min_count = size // 2 + 1
