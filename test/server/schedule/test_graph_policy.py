"""Which graphs serve a combination, which are recorded ahead, and which are evicted."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.server.schedule.execution_costs import Combination, ExecutionCosts, combination_of
from split_infer_ros.server.schedule.graph_policy import (
    foreseen_combinations,
    graphs_for,
    graphs_to_evict,
    padded_combination,
)
from split_infer_ros.server.schedule.graph_sizes import padded_size
from split_infer_ros.server.schedule.request import Request
from split_infer_ros.server.schedule.scheduler import Rules, decide

A1, A2, B1, B2 = (combination_of({model: size}) for model in "ab" for size in (1, 2))
BOTH, TWICE = combination_of({"a": 1, "b": 1}), combination_of({"a": 2, "b": 2})
UNEQUAL = combination_of({"a": 2, "b": 1})


def test_only_large_batches_and_those_of_several_models_are_padded() -> None:
    assert [padded_size(count) for count in (1, 3, 5, 8, 9, 17)] == [1, 3, 5, 8, 16, 32]
    assert [padded_size(count, 2) for count in (1, 2, 3, 4, 5, 9)] == [1, 2, 4, 4, 8, 16]
    assert padded_combination({"b": 3, "a": 1}) == (("a", 1), ("b", 4))
    assert padded_combination({"b": 3}) == (("b", 3),)


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [([A2, B1, UNEQUAL], [UNEQUAL]), ([A2, B1, TWICE], [A2, B1]), ([A1, B1], [B1]), ([], [])],
)
def test_combination_uses_its_graph_or_its_models(recorded: list[Combination], expected: list[Combination]) -> None:
    assert list(graphs_for(dict(UNEQUAL), recorded)) == expected


def test_single_model_uses_the_smallest_graph_that_fits() -> None:
    three, four, eight = ((("a", size),) for size in (3, 4, 8))
    assert graphs_for({"a": 3}, [three, four, eight]) == (three,)
    assert graphs_for({"a": 3}, [four, eight]) == (four,)
    assert graphs_for({"a": 3, "b": 1}, [three, four, B1]) == (three, B1)
    assert graphs_for({"a": 3}, [eight]) == ()


def test_eviction_of_drawn_examples() -> None:
    graph_bytes = {A1: 1, BOTH: 2, B1: 1, TWICE: 4}

    def evicted(new: Combination, new_bytes: int) -> tuple[Combination, ...] | None:
        return graphs_to_evict(graph_bytes, new, new_bytes=new_bytes, max_bytes=10)

    assert evicted(A2, 2) == ()
    assert evicted(A2, 4) == (BOTH,)
    assert evicted(A2, 9) == (BOTH, TWICE, A1)
    assert evicted(A2, 11) is None
    assert evicted(UNEQUAL, 8) == (BOTH, TWICE)
    assert evicted(UNEQUAL, 9) is None, "no single model's graph is evicted for it"


combinations = st.dictionaries(st.sampled_from("abc"), st.sampled_from([1, 2, 4]), min_size=1).map(combination_of)
graphs = st.dictionaries(combinations, st.integers(0, 9), max_size=8)


@given(graphs, combinations, st.integers(0, 12), st.integers(0, 20))
def test_graphs_stay_within_their_memory(
    graph_bytes: dict[Combination, int], new: Combination, new_bytes: int, max_bytes: int
) -> None:
    evicted = graphs_to_evict(graph_bytes, new, new_bytes=new_bytes, max_bytes=max_bytes)
    kept = {graph: size for graph, size in graph_bytes.items() if graph not in (evicted or ())}
    if evicted is None:
        protected = [size for graph, size in graph_bytes.items() if len(graph) == 1 and len(new) > 1]
        assert new_bytes + sum(protected) > max_bytes
        return
    assert sum(kept.values()) + new_bytes <= max_bytes
    if evicted:
        assert sum(kept.values()) + graph_bytes[evicted[-1]] + new_bytes > max_bytes, "one more than necessary"
    assert not (len(new) > 1 and any(len(graph) == 1 for graph in evicted))
    for has_several in (True, False):
        candidates = [graph for graph in graph_bytes if (len(graph) > 1) == has_several]
        of_kind = [graph for graph in evicted if (len(graph) > 1) == has_several]
        assert of_kind == candidates[: len(of_kind)], "a more recently used graph was evicted first"


# a and b are small and gain from being fused, c gains nothing from being fused with them; d is large
ALONE_S = {model: {1: 1.0, 4: 2.0} for model in "abcd"}
COSTS = ExecutionCosts(
    dict(zip("abcd", (1, 1, 1, 99), strict=True)),
    ALONE_S,
    {BOTH: 1.4, TWICE: 2.6, combination_of({"a": 1, "c": 1}): 2.0, combination_of({"b": 1, "c": 1}): 1.99},
)


def test_few_requests_are_foreseen_first() -> None:
    foreseen = [dict(combination) for combination in foreseen_combinations(COSTS, Rules(window=4))]
    sizes = [(counts["a"], counts["b"]) for counts in foreseen]
    assert sizes == [(1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (4, 1)]
    assert list(foreseen_combinations(COSTS, Rules(window=4, fuse=False))) == []
    assert list(foreseen_combinations(COSTS, Rules(window=1))) == []


def test_many_models_take_no_longer_to_foresee() -> None:
    names = [f"m{number}" for number in range(12)]
    pairs = {combination_of(dict.fromkeys(pair, 1)): 1.0 for pair in itertools.combinations(names, 2)}
    costs = ExecutionCosts(dict.fromkeys(names, 1) | {"large": 99}, {name: {1: 1.0, 8: 2.0} for name in names}, pairs)
    assert len(set(itertools.islice(foreseen_combinations(costs, Rules(window=32)), 500))) == 500


@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=12),
    st.integers(1, 8),
    st.integers(1, 5),
    st.lists(st.floats(0.5, 1.2), min_size=6, max_size=6),
)
def test_every_fused_execution_was_foreseen(
    models: list[str], window: int, max_batch_size: int, ratios: list[float]
) -> None:
    once = [combination_of(dict.fromkeys(names, 1)) for names in ("ab", "ac", "bc", "abc")]
    measured = [*once, TWICE, combination_of({"b": 2, "c": 2})]
    alone = ExecutionCosts(COSTS.parameters, ALONE_S)
    fused_s = {
        combination: ratio * alone.execution_s(dict(combination))
        for combination, ratio in zip(measured, ratios, strict=True)
    }
    costs, rules = ExecutionCosts(COSTS.parameters, ALONE_S, fused_s), Rules(window, max_batch_size)
    queue = [
        Request(number, str(number), model, arrival_s=0.0, virtual_deadline_s=number)
        for number, model in enumerate(models)
    ]
    decision = decide(queue, costs, now=0.0, rules=rules)
    if len(decision.batches) > 1:
        executed = padded_combination({batch.model: len(batch.requests) for batch in decision.batches})
        assert executed in set(foreseen_combinations(costs, rules))
