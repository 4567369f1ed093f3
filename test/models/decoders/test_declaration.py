"""Declared layouts: every key and value, refusals that name them, and layouts that survive being written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.decoders import layout as words
from split_infer_ros.models.decoders.declaration import (
    MAX_CHARACTERS,
    is_declaration,
    parse_text,
    read_declaration,
    write_declaration,
)
from split_infer_ros.models.decoders.layout import BoxEncoding, Grid, OutputLayout, Part

OUTPUTS = ("a", "b", "odd[0:4]", "x+y", "c/d", "with, comma")
WHERE = "decoder of net.yaml"


def read(declared: dict[str, Any]) -> OutputLayout:
    return read_declaration(declared, OUTPUTS, WHERE)


def parts() -> st.SearchStrategy[Part]:
    names = st.lists(st.sampled_from(OUTPUTS), min_size=1, max_size=3, unique=True).map(tuple)
    first, length = st.integers(0, 500), st.none() | st.integers(1, 500)
    return st.builds(lambda n, f, k: Part(n, f, None if k is None else f + k), names, first, length)


def floats(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


def layouts() -> st.SearchStrategy[OutputLayout]:
    grids = st.builds(
        Grid,
        strides=st.lists(st.integers(1, 1024), min_size=1, max_size=16).map(tuple),
        offset=floats(0, 1),
        bins=st.integers(2, 256),
        anchors=st.sampled_from(["anchors.npy", "/a/b.json"]),
        variances=st.tuples(floats(1e-6, 1e6), floats(1e-6, 1e6)),
    )
    maybe = st.none() | parts()
    return st.builds(
        OutputLayout,
        name=st.sampled_from(["declared", "yolov8"]),
        boxes=maybe,
        scores=parts(),
        labels=maybe,
        objectness=maybe,
        centres=maybe,
        counts=maybe,
        rows=st.sampled_from(words.Arrangement),
        encoding=st.sampled_from(BoxEncoding),
        range=st.sampled_from(words.BoxRange),
        grid=grids,
        activation=st.sampled_from(words.Activation),
        background=st.sampled_from(words.Background),
        per_box=st.sampled_from(words.PerBox),
        suppression=st.sampled_from(words.Suppression),
        peaks=st.booleans(),
        first_class=st.integers(0, 1000),
        classes=st.none() | st.integers(1, 100_000),
    )


@settings(max_examples=150)
@given(layout=layouts())
def test_a_written_layout_is_read_as_it_was(layout: OutputLayout) -> None:
    written = json.loads(json.dumps(write_declaration(layout)))
    assert read(written) == layout


def test_text_and_mapping_mean_the_same() -> None:
    text = (
        "boxes=a[0:4], scores=a[5:], objectness=a[4:5], encoding=cells, strides=8/16/32, offset=0.5, range=pixels,"
        "activation=sigmoid, background=none, per_box=all, nms=all, rows=columns, peaks=true, num_classes=3,"
    )
    mapping = {
        "boxes": "a[0:4]",
        "scores": ["a[5:]"],
        "objectness": "a[4:5]",
        "encoding": "cells",
        "strides": [8, 16, 32],
        "offset": 0.5,
        "range": "pixels",
        "activation": "sigmoid",
        "background": "none",
        "per_box": "all",
        "nms": "all",
        "rows": "columns",
        "peaks": True,
        "num_classes": 3,
    }
    assert is_declaration(text)
    assert read(parse_text(text)) == read(mapping)
    assert read(mapping).suppression is words.Suppression.ALL
    assert (read(mapping).name, read(mapping).classes) == ("declared", 3)


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("a", Part(("a",))),
        (" a ", Part(("a",))),
        ("a[:4]", Part(("a",), 0, 4)),
        ("a[4:]", Part(("a",), 4)),
        ("a[2:6]", Part(("a",), 2, 6)),
        ("a+b", Part(("a", "b"))),
        ("a[0:4]+b[0:4]", Part(("a", "b"), 0, 4)),
        (["a", "b"], Part(("a", "b"))),
        (["a", "b[1:3]"], Part(("a", "b"), 1, 3)),
        ("odd[0:4]", Part(("odd[0:4]",))),  # the name of an output
        ("odd[0:4][1:2]", Part(("odd[0:4]",), 1, 2)),
        ("x+y", Part(("x+y",))),
        ("x+y[3:9]", Part(("x+y",), 3, 9)),
        ("c/d", Part(("c/d",))),
        (["with, comma"], Part(("with, comma",))),
    ],
)
def test_parts_name_outputs_and_their_numbers(value: Any, part: Part) -> None:
    assert read({"scores": value}).scores == part


@pytest.mark.parametrize(
    ("key", "values", "takes"),
    [
        ("scores", ["c", "", 7, None, [], ["a", 7], "a[4:2]", "a[3:3]", "a[x:2]", "a[-1:2]", "a[1:2", "a+c",
                    ["a[0:2]", "b[0:3]"], "a[0:99999999]", {"a": 1}], r"an output \(a, b"),
        ("boxes", ["c", 4, True], "an output"),
        ("encoding", ["corner", "", None, 4, ["corners"], "CORNERS"], "one of: corners, corners_yx"),
        ("range", ["0-1", 1, None], r"one of: pixels, 0..1, auto"),
        ("activation", ["relu", True], "one of: none, sigmoid, softmax"),
        ("background", ["0", 0], "one of: none, first, last"),
        ("rows", ["row", {}], "one of: rows, columns, maps"),
        ("per_box", ["some"], "one of: best, all"),
        ("nms", ["no", False], "one of: none, per_class, all"),
        ("strides", ["", "8/x", 0, -8, 8.5, "8//16", [], [8, None], 2000, list(range(1, 18)), True, "inf", "nan",
                     float("nan"), 10**400], "up to 16 whole numbers of pixels"),
        ("offset", ["half", -0.1, 1.1, None, "nan", True], "a number of cells from 0 to 1"),
        ("bins", [1, 257, "8.5", None, "many", True, 10**400], "a whole number from 2 to 256"),
        ("anchors", [7, "", None, ["a"]], "the path of a file"),
        ("variances", ["0.1", "0.1/0.2/0.3", 0.1, "0/1", [0.1, -1], ["a", "b"], None], "two positive numbers"),
        ("peaks", ["yes", 2, None, [], "1"], "true or false"),
        ("first_class", [-1, 1001, 0.5, "one", True], "a whole number up to 1000"),
        ("num_classes", [0, -1, 1e9, "many", None, float("inf")], "a number of classes"),
    ],
)  # fmt: skip
def test_a_value_that_is_none_of_its_key_is_refused(key: str, values: list[Any], takes: str) -> None:
    for value in values:
        with pytest.raises(ConfigurationError, match=rf"^{WHERE} has {key} '.*'; it takes {takes}"):
            read({"scores": "a"} | {key: value})


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ({"scores": "a", "box": "a"}, "has the key 'box'; keys are: boxes, scores, classes"),
        ({"scores": "a", "labels": "a"}, "has the key 'labels'"),
        ({"scores": "a", "images": "a"}, "has the key 'images'"),
        ({"scores": "a", "x" * 999: "a"}, f"has the key '{'x' * 60}'"),
        ({"boxes": "a"}, "does not say which output holds the scores; add scores"),
        ({}, "does not say which output holds the scores"),
        (
            {"scores": "a", "boxes": "b", "encoding": "anchors"},
            "has encoding anchors and no anchors: add anchors: FILE",
        ),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused(declared: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{WHERE} {reason}"):
        read(declared)


@pytest.mark.parametrize("text", ["boxes", "boxes=a,boxes=b", "=a", "boxes=", "boxes=a,,scores", "a=b,=,c=d"])
def test_text_that_is_no_declaration_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"decoder has the entry '.*'; a declaration takes key=value"):
        parse_text(text)


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"decoder has 5,000 characters; a declaration has at most 4,096"):
        parse_text("x" * 5000)
    assert len(parse_text("boxes=" + "a" * (MAX_CHARACTERS - 6))) == 1


@settings(max_examples=200)
@given(
    declared=st.dictionaries(
        st.sampled_from(["boxes", "scores", "strides", "offset", "bins", "peaks", "variances", "encoding", "nms"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
            max_leaves=5,
        ),
    )
)
def test_any_contents_are_read_or_refused_in_a_sentence(declared: dict[str, Any]) -> None:
    try:
        layout = read({"scores": "a"} | declared)
    except ConfigurationError:  # any other error fails
        pass
    else:
        assert read(json.loads(json.dumps(write_declaration(layout)))) == layout
