"""Tables of parameters: copied rows, families of rows, and unknown names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.nodes.parameters.table import Rows, family, like, parameter


@dataclass(frozen=True)
class Dog:
    breed: str = parameter("mongrel", "Which breed it is.", choices=("mongrel", "poodle"))
    age: float = parameter(1.0, "In years.", minimum=0.0, maximum=30.0)


@dataclass(frozen=True)
class Kennel:
    dogs: tuple[str, ...] = parameter((), "Their names.")
    of: Mapping[str, Dog] = family("dogs", "dog", Dog)
    age: float = like(Dog, "age", default=10.0, maximum=500.0)


ROWS = Rows(Kennel)


def test_copied_row_differs_only_where_changed() -> None:
    copied, original = ROWS.row("age"), ROWS.row("dog.rex.age")
    assert copied is not None
    assert original is not None
    assert (copied.default, copied.metadata["maximum"]) == (10.0, 500.0)
    assert (original.default, original.metadata["maximum"]) == (1.0, 30.0)
    assert copied.metadata["description"] == original.metadata["description"]


def test_listing_a_name_or_setting_its_row_adds_it() -> None:
    kennel = ROWS.changed(Kennel(), {"dogs": ["rex"], "dog.fay.breed": "poodle"})
    assert kennel == Kennel(("rex",), {"rex": Dog(), "fay": Dog("poodle")})
    kennel = ROWS.changed(kennel, {"dog.fay.age": 3})
    assert kennel.of["fay"] == Dog("poodle", 3.0)
    assert ROWS.changed(kennel, {"dogs": []}).of == kennel.of


def test_change_leaves_the_old_table_unchanged() -> None:
    before = ROWS.changed(Kennel(), {"dog.rex.age": 2.0})
    ROWS.changed(before, {"dog.rex.age": 5.0})
    assert before.of["rex"].age == 2.0


def test_flat_names_are_parameter_names() -> None:
    kennel = ROWS.changed(Kennel(), {"dogs": ["rex"], "dog.rex.age": 2.0})
    assert {name: value for name, (_, value) in ROWS.flat(kennel).items()} == {
        "dogs": ("rex",),
        "age": 10.0,
        "dog.rex.breed": "mongrel",
        "dog.rex.age": 2.0,
    }


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("dog.rex.age", 31.0, ["dog.rex.age cannot be 31.0", "from 0 to 30"]),
        ("dog.rex.breed", "cat", ["dog.rex.breed cannot be 'cat'", "mongrel, poodle"]),
        ("dogs", "rex", ["dogs cannot be 'rex'", "a list of texts"]),
    ],
)
def test_refused_value_is_reported_with_its_full_name(name: str, value: object, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        ROWS.changed(Kennel(), {name: value})
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    "name", ["dog.rex", "dog.rex.colour", "cats.tom.age", "ages", "dogs.rex.age", "dogrex.age", ""]
)
def test_unknown_names_are_not_in_the_table(name: str) -> None:
    assert name not in ROWS


def test_hint_names_the_similar_row() -> None:
    assert "Did you mean 'dog.rex.breed'?" in ROWS.hint("dog.rex.bred")
    assert "It has: dogs, age, dog.NAME.breed, dog.NAME.age." in ROWS.hint("nothing")
