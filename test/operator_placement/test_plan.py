"""Hand-drawn graphs, and any graph: what both passes promise."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.operator_placement.plan import Copy, Operator, PlacementPlan, Tag, describe, make_plan

G, C, ANY = Tag.GPU, Tag.CPU, Tag.ANY
RULE = {"input": G, "conv": G, "sort": C, "view": ANY, "output": C}


def plan_of(*operators: Operator, rule: Mapping[str, Tag] = RULE) -> PlacementPlan:
    return make_plan(operators, lambda operator: rule.get(operator.kind))


def where(plan: PlacementPlan) -> str:
    return "".join("g" if plan.devices[operator.name] is G else "c" for operator in plan.operators)


def moved(plan: PlacementPlan) -> list[tuple[str, Tag, str]]:
    return [(copy.producer, copy.target, copy.before) for copy in plan.copies]


IMAGES = Operator("images", "input", (), 12)
CONV = Operator("conv", "conv", ("images",), 80)


def test_a_copy_lies_between_neighbours_on_different_processors() -> None:
    plan = plan_of(IMAGES, CONV, Operator("nms", "sort", ("conv",), 8), Operator("out", "output", ("nms",), 8))
    assert where(plan) == "ggcc"
    assert plan.copies == (Copy("conv", C, "nms", 80),)
    assert plan.copied_bytes == 80


def test_who_needs_the_same_value_on_the_same_processor_shares_a_copy() -> None:
    plan = plan_of(
        IMAGES,
        CONV,
        Operator("a", "sort", ("conv",)),
        Operator("b", "sort", ("conv", "a")),
        Operator("c", "conv", ("conv", "b")),  # the original, not a copy of the copy
        Operator("out", "output", ("c", "conv", "conv")),
    )
    assert where(plan) == "ggccgc"
    assert moved(plan) == [("conv", C, "a"), ("b", G, "c"), ("c", C, "out")]


def test_what_computes_nothing_runs_where_its_input_lies() -> None:
    view = Operator("view", "view", ("conv",), 20)
    plan = plan_of(IMAGES, CONV, view, Operator("nms", "sort", ("view",)), Operator("out", "output", ("nms",)))
    assert where(plan) == "gggcc"
    assert moved(plan) == [("view", C, "nms")]  # 20 bytes of 80


def test_views_go_where_they_are_wanted_if_what_they_show_is_there() -> None:
    first, last = Operator("first", "view", ("conv",), 20), Operator("last", "view", ("first",), 20)
    out = Operator("out", "output", ("last", "nms"))
    plan = plan_of(IMAGES, CONV, Operator("nms", "sort", ("conv",)), first, last, out)
    assert where(plan) == "ggcccc"
    assert moved(plan) == [("conv", C, "nms")]


def test_several_views_of_a_value_are_one_copy_if_that_is_no_larger() -> None:
    for size, expected in ((30, [("v0", C, "out"), ("v1", C, "out")]), (40, [("conv", C, "v0")])):
        views = [Operator(f"v{index}", "view", ("conv",), size) for index in range(2)]
        plan = plan_of(IMAGES, CONV, *views, Operator("out", "output", ("v0", "v1")))
        assert moved(plan) == expected


def test_what_is_made_of_constants_alone_is_made_where_it_is_wanted() -> None:
    scale, shaped = Operator("scale", "view", (), 8), Operator("shaped", "view", ("scale",), 8)
    scaled, out = Operator("scaled", "conv", ("conv", "shaped")), Operator("out", "output", ("scaled",))
    plan = plan_of(IMAGES, CONV, scale, shaped, scaled, out)
    assert where(plan) == "gggggc"
    assert moved(plan) == [("scaled", C, "out")]
    plan = plan_of(IMAGES, CONV, scale, shaped, Operator("nms", "sort", ("scale",)), scaled, out)
    assert plan.devices["scale"] is C


def test_an_unlisted_operator_runs_on_the_cpu_and_is_told() -> None:
    unknown = Operator("a", "wavelet", ("images",), 7), Operator("b", "wavelet", ("a",), 7)
    plan = plan_of(IMAGES, *unknown, Operator("c", "conv", ("b",)))
    assert where(plan) == "gccg"
    assert plan.unlisted == {"wavelet": 2}
    assert "No list knows wavelet, so it runs on the CPU (2 of it)." in describe(plan)


def test_numbers_are_neither_listed_nor_copied() -> None:
    plan = plan_of(
        IMAGES,
        Operator("length", "size", ("images",), None),
        Operator("half", "floordiv", ("length",), None),
        Operator("nms", "sort", ("half",)),
    )
    assert plan.unlisted == {"size": 1}  # it takes a tensor
    assert plan.copies == (Copy("images", C, "length", 12),)
    assert "copy  images to the cpu, 12 bytes" in describe(plan)
    assert make_plan(plan.operators, lambda operator: (RULE | {"size": ANY}).get(operator.kind)).copies == ()


def test_people_read_runs_and_copies() -> None:
    more = [Operator(f"conv{index}", "conv", ("conv",), 80) for index in range(2)]
    nms = Operator("nms", "sort", ("conv0", "conv1"), 8)
    plan = plan_of(IMAGES, CONV, *more, nms, Operator("out", "output", ("nms",)))
    assert describe(plan).splitlines() == [
        "gpu   images ... conv1: 3 conv, input",
        "copy  conv0 to the cpu, 80 bytes",
        "copy  conv1 to the cpu, 80 bytes",
        "cpu   nms ... out: sort, output",
    ]


@st.composite
def graphs(draw: st.DrawFn) -> list[Operator]:
    operators = [Operator("o0", "input", (), draw(st.integers(1, 99)))]
    for index in range(1, draw(st.integers(1, 24))):
        inputs = draw(st.lists(st.integers(0, index - 1), min_size=0, max_size=3))
        kind = draw(st.sampled_from(["conv", "sort", "view", "wavelet"]))
        size = draw(st.one_of(st.none(), st.integers(0, 99)))
        operators.append(Operator(f"o{index}", kind, tuple(f"o{one}" for one in inputs), size))
    operators.append(Operator("out", "output", (operators[-1].name,), operators[-1].nbytes))
    return operators


@given(graphs())
def test_every_edge_has_its_copy_and_no_copy_is_without_use(operators: list[Operator]) -> None:
    plan = plan_of(*operators)
    assert [operator.name for operator in plan.operators] == [operator.name for operator in operators]
    assert set(plan.devices.values()) <= {G, C}
    sizes = {operator.name: operator.nbytes for operator in operators}
    edges = [
        (producer, plan.devices[operator.name], operator.name)
        for operator in operators
        for producer in operator.inputs
        if sizes[producer] is not None and plan.devices[producer] is not plan.devices[operator.name]
    ]
    needed = {(producer, target) for producer, target, _ in edges}
    made = [(copy.producer, copy.target) for copy in plan.copies]
    assert len(made) == len(set(made))
    assert set(made) == needed
    order = {operator.name: index for index, operator in enumerate(operators)}
    for copy in plan.copies:
        users = [name for producer, target, name in edges if (producer, target) == (copy.producer, copy.target)]
        assert copy.before == min(users, key=order.__getitem__)
        assert copy.nbytes == sizes[copy.producer]


@given(graphs())
def test_what_is_listed_runs_where_it_is_listed_and_all_else_on_the_cpu(operators: list[Operator]) -> None:
    plan = plan_of(*operators)
    for operator in operators:
        about_tensors = operator.nbytes is not None or any(
            other.nbytes is not None for other in operators if other.name in operator.inputs
        )
        if about_tensors and operator.kind != "view":
            assert plan.devices[operator.name] is RULE.get(operator.kind, C)


@given(graphs())
def test_views_never_cost_more_than_if_they_stayed(operators: list[Operator]) -> None:
    """Against the two passes without the third merging: views always where their first input lies."""
    free: dict[str, Tag] = {}
    sizes = {operator.name: operator.nbytes for operator in operators}
    for operator in operators:
        tag = RULE.get(operator.kind, C)
        if tag is ANY or (operator.nbytes is None and all(sizes[name] is None for name in operator.inputs)):
            tag = next((free[name] for name in operator.inputs), C)
        free[operator.name] = tag
    naive = {
        (producer, free[operator.name])
        for operator in operators
        for producer in operator.inputs
        if sizes[producer] is not None and free[producer] is not free[operator.name]
    }
    assert plan_of(*operators).copied_bytes <= sum(sizes[producer] or 0 for producer, _ in naive)
