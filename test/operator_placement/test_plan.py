"""What both passes guarantee, on hand-made graphs and on drawn ones."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.operator_placement.plan import Copy, Operator, PlacementPlan, Tag, describe, make_plan

G, C, ANY = Tag.GPU, Tag.CPU, Tag.ANY
RULE = {"input": G, "conv": G, "sort": C, "view": ANY, "output": C}


def plan_of(*operators: Operator, rule: Mapping[str, Tag] = RULE) -> PlacementPlan:
    return make_plan(operators, lambda operator: rule.get(operator.kind))


def devices_of(plan: PlacementPlan) -> str:
    return "".join("g" if plan.devices[operator.name] is G else "c" for operator in plan.operators)


def copies_of(plan: PlacementPlan) -> list[tuple[str, Tag, str]]:
    return [(copy.producer, copy.target, copy.before) for copy in plan.copies]


IMAGES = Operator("images", "input", (), 12)
CONV = Operator("conv", "conv", ("images",), 80)


def test_neighbours_on_different_processors_need_a_copy() -> None:
    plan = plan_of(IMAGES, CONV, Operator("nms", "sort", ("conv",), 8), Operator("out", "output", ("nms",), 8))
    assert devices_of(plan) == "ggcc"
    assert plan.copies == (Copy("conv", C, "nms", 80),)
    assert plan.copied_bytes == 80


def test_users_on_one_processor_share_a_copy() -> None:
    plan = plan_of(
        IMAGES,
        CONV,
        Operator("a", "sort", ("conv",)),
        Operator("b", "sort", ("conv", "a")),
        Operator("c", "conv", ("conv", "b")),  # the original, not a copy of the copy
        Operator("out", "output", ("c", "conv", "conv")),
    )
    assert devices_of(plan) == "ggccgc"
    assert copies_of(plan) == [("conv", C, "a"), ("b", G, "c"), ("c", C, "out")]


def test_a_view_runs_where_its_input_lies() -> None:
    view = Operator("view", "view", ("conv",), 20)
    plan = plan_of(IMAGES, CONV, view, Operator("nms", "sort", ("view",)), Operator("out", "output", ("nms",)))
    assert devices_of(plan) == "gggcc"
    assert copies_of(plan) == [("view", C, "nms")]  # 20 bytes of 80


def test_views_follow_their_users_to_an_existing_copy() -> None:
    first, last = Operator("first", "view", ("conv",), 20), Operator("last", "view", ("first",), 20)
    out = Operator("out", "output", ("last", "nms"))
    plan = plan_of(IMAGES, CONV, Operator("nms", "sort", ("conv",)), first, last, out)
    assert devices_of(plan) == "ggcccc"
    assert copies_of(plan) == [("conv", C, "nms")]


def test_views_share_one_copy_if_it_is_no_larger() -> None:
    for size, expected in ((30, [("v0", C, "out"), ("v1", C, "out")]), (40, [("conv", C, "v0")])):
        views = [Operator(f"v{index}", "view", ("conv",), size) for index in range(2)]
        plan = plan_of(IMAGES, CONV, *views, Operator("out", "output", ("v0", "v1")))
        assert copies_of(plan) == expected


def test_constants_are_made_on_their_users_processor() -> None:
    scale, shaped = Operator("scale", "view", (), 8), Operator("shaped", "view", ("scale",), 8)
    scaled, out = Operator("scaled", "conv", ("conv", "shaped")), Operator("out", "output", ("scaled",))
    plan = plan_of(IMAGES, CONV, scale, shaped, scaled, out)
    assert devices_of(plan) == "gggggc"
    assert copies_of(plan) == [("scaled", C, "out")]
    plan = plan_of(IMAGES, CONV, scale, shaped, Operator("nms", "sort", ("scale",)), scaled, out)
    assert plan.devices["scale"] is C


def test_an_unlisted_operator_runs_on_the_cpu_and_is_named() -> None:
    unknown = Operator("a", "wavelet", ("images",), 7), Operator("b", "wavelet", ("a",), 7)
    plan = plan_of(IMAGES, *unknown, Operator("c", "conv", ("b",)))
    assert devices_of(plan) == "gccg"
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


def test_the_description_lists_runs_and_copies() -> None:
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
        operators.append(Operator(f"o{index}", kind, tuple(f"o{number}" for number in inputs), size))
    operators.append(Operator("out", "output", (operators[-1].name,), operators[-1].nbytes))
    return operators


@given(graphs())
def test_there_is_exactly_one_copy_for_each_need(operators: list[Operator]) -> None:
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
def test_listed_operators_run_where_the_list_says(operators: list[Operator]) -> None:
    plan = plan_of(*operators)
    for operator in operators:
        has_any_tensor = operator.nbytes is not None or any(
            other.nbytes is not None for other in operators if other.name in operator.inputs
        )
        if has_any_tensor and operator.kind != "view":
            assert plan.devices[operator.name] is RULE.get(operator.kind, C)


@given(graphs())
def test_moving_views_never_adds_copied_bytes(operators: list[Operator]) -> None:
    """Compares with the two passes alone, in which a view always runs where its first input lies."""
    tags: dict[str, Tag] = {}
    sizes = {operator.name: operator.nbytes for operator in operators}
    for operator in operators:
        tag = RULE.get(operator.kind, C)
        if tag is ANY or (operator.nbytes is None and all(sizes[name] is None for name in operator.inputs)):
            tag = next((tags[name] for name in operator.inputs), C)
        tags[operator.name] = tag
    naive = {
        (producer, tags[operator.name])
        for operator in operators
        for producer in operator.inputs
        if sizes[producer] is not None and tags[producer] is not tags[operator.name]
    }
    assert plan_of(*operators).copied_bytes <= sum(sizes[producer] or 0 for producer, _ in naive)
