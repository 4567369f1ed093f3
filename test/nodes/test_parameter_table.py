"""Tables of parameters: settings of parts, families of rows, and unknown names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.nodes.parameters.table import Rows, family, part
from split_infer_ros.setting import MILLISECONDS, setting


@dataclass(frozen=True)
class Collar:
    PURPOSE = "Clothes"

    knitting_s: float = setting(
        0.05, "How long it takes, in milliseconds.", minimum=0.0, maximum=1.0, unit=MILLISECONDS
    )
    hidden: int = 3


@dataclass(frozen=True)
class Dog:
    breed: str = setting("mongrel", "Which breed it is.", choices=("mongrel", "poodle"))
    age: float = setting(1.0, "In years.", minimum=0.0, maximum=30.0)


@dataclass(frozen=True)
class Kennel:
    dogs: tuple[str, ...] = setting((), "Their names.")
    of: Mapping[str, Dog] = family("dogs", "dog", Dog)
    age: float = setting(10.0, "In years.", minimum=0.0, maximum=500.0)


@dataclass(frozen=True)
class Shop:
    PURPOSE = "Shop"

    name: str = setting("", "Its name.")
    collar: Collar = part(Collar(0.5), knitting_s={"read_only": True, "maximum": 0.9})
    spare: Collar = part(Collar(), without=("knitting_s",))


ROWS = Rows(Kennel)
SHOP = Rows(Shop)


def test_settings_of_a_part_are_rows_in_the_unit_of_users() -> None:
    shop = SHOP.changed(Shop(), {"knitting_ms": 33.3})
    assert shop.collar.knitting_s == pytest.approx(0.0333)
    assert {name: value for name, (_, value) in SHOP.flat(shop).items()} == {"name": "", "knitting_ms": 33.3}
    with pytest.raises(ConfigurationError, match="knitting_ms cannot be 901"):
        SHOP.changed(Shop(), {"knitting_ms": 901})


def test_row_has_what_differs_in_its_table() -> None:
    row = SHOP.row("knitting_ms")
    assert row is not None
    assert (row.setting.default, row.setting.read_only) == (500.0, True)
    assert row.setting.maximum == 900.0


def test_purpose_is_that_of_the_declaring_dataclass() -> None:
    purposes = {name: row.purpose for name, (row, _) in SHOP.flat(Shop()).items()}
    assert purposes == {"name": "Shop", "knitting_ms": "Clothes"}


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
