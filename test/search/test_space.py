from __future__ import annotations

import pytest

from split_infer_ros.search.space import Space, describe_config, frozen

SPACE = Space(
    {"layout": ("channels_last", "contiguous"), "fusion": (True, False), "threads": (2, 1)},
    excludes=({"layout": "contiguous", "fusion": True},),
)


def test_all_configurations_the_default_first() -> None:
    configs = list(SPACE)
    assert configs[0] == SPACE.default == {"layout": "channels_last", "fusion": True, "threads": 2}
    assert len(configs) == len(SPACE) == 6
    assert len({frozen(config) for config in configs}) == 6
    assert all(config in SPACE for config in configs)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"layout": "blocked"}, "'layout' cannot be 'blocked'; it takes one of: channels_last, contiguous."),
        ({"thread": 1}, "There is no knob 'thread'. Did you mean 'threads'?"),
        ({"threads": True}, "'threads' cannot be True"),
        ({"threads": 2.0}, "'threads' cannot be 2.0"),
        ({"threads": [2]}, "'threads' cannot be"),
        ({"fusion": 1}, "'fusion' cannot be 1; it takes one of: True, False."),
        ({"layout": "contiguous"}, "layout contiguous, fusion True do not go together."),
    ],
)
def test_what_lies_outside_is_refused_by_name(change: dict[str, object], sentence: str) -> None:
    config = {**SPACE.default, **change}
    assert config not in SPACE
    assert sentence in str(SPACE.objection(config))


def test_what_is_missing_is_named() -> None:
    assert "The knob 'threads' has no value" in str(SPACE.objection({"layout": "contiguous", "fusion": False}))
    assert SPACE.objection(SPACE.default) is None
    assert 3 not in SPACE


def test_people_are_told_what_differs() -> None:
    assert describe_config({**SPACE.default, "threads": 1}, SPACE.default) == "threads 1"
    assert describe_config(SPACE.default, SPACE.default) == "the defaults"
    assert describe_config({"threads": 1, "fusion": False}) == "threads 1, fusion False"
