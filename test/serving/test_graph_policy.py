"""Which graphs serve, which are recorded ahead, and which give way."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.serving.execution_costs import ExecutionCosts, Group, group
from split_infer_ros.serving.graph_policy import as_recorded, foreseen, graphs_for, make_way, padded
from split_infer_ros.serving.request import Request
from split_infer_ros.serving.scheduler import Rules, decide

A1, A2, B1, B2 = (group({model: size}) for model in "ab" for size in (1, 2))
BOTH, TWICE, UNEQUAL = group({"a": 1, "b": 1}), group({"a": 2, "b": 2}), group({"a": 2, "b": 1})


def test_batches_are_padded_to_powers_of_two() -> None:
    assert [padded(count) for count in (1, 2, 3, 4, 5, 9)] == [1, 2, 4, 4, 8, 16]
    assert as_recorded({"b": 3, "a": 1}) == (("a", 1), ("b", 4))


@pytest.mark.parametrize(
    ("kept", "expected"),
    [([A2, B1, UNEQUAL], [UNEQUAL]), ([A2, B1, TWICE], [A2, B1]), ([A1, B1], [B1]), ([], [])],
)
def test_a_combination_has_its_own_graph_or_those_of_its_models(kept: list[Group], expected: list[Group]) -> None:
    assert list(graphs_for(UNEQUAL, kept)) == expected


def test_what_gives_way_on_a_list_drawn_by_hand() -> None:
    kept = {A1: 1, BOTH: 2, B1: 1, TWICE: 4}
    assert make_way(kept, A2, 2, 10) == ()
    assert make_way(kept, A2, 4, 10) == (BOTH,)
    assert make_way(kept, A2, 9, 10) == (BOTH, TWICE, A1)
    assert make_way(kept, A2, 11, 10) is None
    assert make_way(kept, UNEQUAL, 8, 10) == (BOTH, TWICE)
    assert make_way(kept, UNEQUAL, 9, 10) is None, "no model's own goes for it"


combinations = st.dictionaries(st.sampled_from("abc"), st.sampled_from([1, 2, 4]), min_size=1).map(group)


graphs = st.dictionaries(combinations, st.integers(0, 9), max_size=8)


@given(graphs, combinations, st.integers(0, 12), st.integers(0, 20))
def test_whatever_is_kept_stays_within_the_bound(
    kept: dict[Group, int], newcomer: Group, nbytes: int, most: int
) -> None:
    gone = make_way(kept, newcomer, nbytes, most)
    left = {found: size for found, size in kept.items() if found not in (gone or ())}
    if gone is None:
        own = [size for found, size in kept.items() if len(found) == 1 and len(newcomer) > 1]
        assert nbytes + sum(own) > most
        return
    assert sum(left.values()) + nbytes <= most
    if gone:
        assert sum(left.values()) + kept[gone[-1]] + nbytes > most, "one more than need be"
    assert not (len(newcomer) > 1 and any(len(found) == 1 for found in gone))
    for kind in (True, False):
        of_kind = [found for found in kept if (len(found) > 1) == kind]
        mine = [found for found in gone if (len(found) > 1) == kind]
        assert mine == of_kind[: len(mine)], "one that was used later went first"


# a and b are small and gain from being one, c gains nothing beside them; d is large
ALONE = {model: {1: 1.0, 4: 2.0} for model in "abcd"}
COSTS = ExecutionCosts(
    dict(zip("abcd", (1, 1, 1, 99), strict=True)),
    ALONE,
    {BOTH: 1.4, TWICE: 2.6, group({"a": 1, "c": 1}): 2.0, group({"b": 1, "c": 1}): 1.99},
)


def test_what_is_foreseen_takes_few_requests_first() -> None:
    found = [dict(each) for each in foreseen(COSTS, Rules(window=4))]
    sizes = [(each["a"], each["b"]) for each in found]
    assert sizes == [(1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (4, 1)]
    assert list(foreseen(COSTS, Rules(window=4, fuse=False))) == []
    assert list(foreseen(COSTS, Rules(window=1))) == []


def test_it_takes_no_longer_for_many_models() -> None:
    names = [f"m{number}" for number in range(12)]
    pairs = {group(dict.fromkeys(pair, 1)): 1.0 for pair in itertools.combinations(names, 2)}
    costs = ExecutionCosts(dict.fromkeys(names, 1) | {"large": 99}, {name: {1: 1.0, 8: 2.0} for name in names}, pairs)
    assert len(set(itertools.islice(foreseen(costs, Rules(window=32)), 500))) == 500


@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=12),
    st.integers(1, 8),
    st.integers(1, 5),
    st.lists(st.floats(0.5, 1.2), min_size=6, max_size=6),
)
def test_whatever_the_scheduler_makes_one_execution_was_foreseen(
    models: list[str], window: int, most: int, gains: list[float]
) -> None:
    ones = [group(dict.fromkeys(names, 1)) for names in ("ab", "ac", "bc", "abc")]
    together = [*ones, TWICE, group({"b": 2, "c": 2})]
    alone = ExecutionCosts(COSTS.parameters, ALONE)
    fused = {found: gain * alone.execution_s(dict(found)) for found, gain in zip(together, gains, strict=True)}
    costs, rules = ExecutionCosts(COSTS.parameters, ALONE, fused), Rules(window, most)
    queue = [Request(number, str(number), model, 0.0, turn_s=number) for number, model in enumerate(models)]
    decision = decide(queue, costs, 0.0, rules)
    if len(decision.batches) > 1:
        made = as_recorded({batch.model: len(batch.requests) for batch in decision.batches})
        assert made in set(foreseen(costs, rules))
