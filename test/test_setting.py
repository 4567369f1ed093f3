"""Settings: what users may choose, in the unit of users and in that of the field."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.setting import MEGABYTES, MILLISECONDS, Setting, check_settings, like, setting, settings_of


class Sort(Enum):
    RIPE = "ripe"
    GREEN = "green"


@dataclass(frozen=True)
class Fruit:
    sort: Sort = setting(Sort.RIPE, "Which it is.")
    picked_s: float = setting(0.25, "How long ago.", minimum=0.0, maximum=60.0, unit=MILLISECONDS)
    weight_bytes: float = setting(math.inf, "At most. 0: no limit.", minimum=0.0, maximum=1e12, unit=MEGABYTES)
    seed_bytes: int = setting(2 * 10**6, "Of one.", minimum=0, maximum=10**9, unit=MEGABYTES, name="seed_memory_mb")
    seeds: int = setting(3, "How many.", minimum=1)
    names: tuple[str, ...] = setting((), "Their names.")
    taste: float = 0.5

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class Apple(Fruit):
    seeds: int = like(Fruit, "seeds", default=5, maximum=10)


OF_USERS: dict[str, Setting] = dict(found.of_users(name) for name, found in settings_of(Fruit).items())


def test_users_see_names_and_defaults_in_their_unit() -> None:
    assert {name: found.default for name, found in OF_USERS.items()} == {
        "sort": "ripe",
        "picked_ms": 250.0,
        "weight_mb": 0.0,
        "seed_memory_mb": 2.0,
        "seeds": 3,
        "names": (),
    }
    assert (OF_USERS["picked_ms"].minimum, OF_USERS["picked_ms"].maximum) == (0.0, 60_000.0)
    assert OF_USERS["weight_mb"].maximum == 1e6


@pytest.mark.parametrize(
    ("name", "user", "inside"),
    [
        ("sort", "green", Sort.GREEN),
        ("picked_s", 30.0, 0.03),
        ("weight_bytes", 0.0, math.inf),
        ("weight_bytes", 1.5, 1.5e6),
        ("seed_bytes", 3.0, 3_000_000),
        ("names", ("a", "b"), ("a", "b")),
    ],
)
def test_values_of_users_and_of_fields_match(name: str, user: Any, inside: Any) -> None:
    found = settings_of(Fruit)[name]
    assert found.from_user(user) == inside
    assert type(found.from_user(user)) is type(inside)
    assert found.to_user(inside) == user


@given(st.integers(0, 6_000_000))
def test_short_number_survives_both_conversions(hundredths: int) -> None:
    found = settings_of(Fruit)["picked_s"]
    assert found.to_user(found.from_user(hundredths / 100)) == hundredths / 100


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("sort", "sweet", "sort cannot be 'sweet'; it takes one of: ripe, green."),
        ("picked_ms", -1, "picked_ms cannot be -1.0; it takes a number from 0 to 60000."),
        ("picked_ms", math.nan, "picked_ms cannot be nan; it takes a number from 0 to 60000."),
        ("weight_mb", math.inf, "weight_mb cannot be inf; it takes a number from 0 to 1e+06."),
        ("seeds", 0, "seeds cannot be 0; it takes a whole number of at least 1."),
        ("seeds", True, "seeds cannot be True; it takes a whole number of at least 1."),
        ("names", [1], "names cannot be (1,); it takes a list of texts."),
        ("names", "a", "names cannot be 'a'; it takes a list of texts."),
    ],
)
def test_refused_value_gets_a_sentence(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        OF_USERS[name].check(name, value)
    assert str(refusal.value) == sentence


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"picked_s": 61}, "picked_s cannot be 61.0; it takes a number from 0 to 60."),
        ({"sort": "ripe"}, "sort cannot be 'ripe'; it takes one of: Sort.RIPE, Sort.GREEN."),
        (
            {"weight_bytes": -1.0},
            "weight_bytes cannot be -1.0; it takes a number from 0 to 1e+12, or inf for no limit.",
        ),
    ],
)
def test_dataclass_refuses_a_value_in_its_own_unit(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        Fruit(**change)
    assert str(refusal.value) == sentence


def test_dataclass_accepts_no_limit_and_lists() -> None:
    assert Fruit(weight_bytes=math.inf, picked_s=1, names=("a",)).weight_bytes == math.inf


def test_copied_setting_differs_only_where_changed() -> None:
    copied, original = settings_of(Apple)["seeds"], settings_of(Fruit)["seeds"]
    assert (Apple().seeds, copied.maximum, copied.minimum) == (5, 10, 1)
    assert (Fruit().seeds, original.maximum) == (3, None)
    assert copied.description == original.description
