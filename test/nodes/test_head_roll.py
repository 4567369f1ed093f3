"""Which of several heads has the batches, by what they say of themselves; the times are the test's own."""

from __future__ import annotations

import pytest

from split_infer_ros.nodes.transports.head_roll import FORGOTTEN_S, HeadRoll

SILENT_S = 2.0


@pytest.fixture
def roll() -> HeadRoll:
    return HeadRoll(SILENT_S)


def test_the_first_head_is_active(roll: HeadRoll) -> None:
    assert roll.active == ""
    roll.hear("a", 0.0)
    roll.hear("b", 0.0)
    for now in range(10):
        roll.hear("b", now)
        roll.hear("a", now)
        assert roll.active == "a"


def test_a_silent_head_gives_way_to_one_that_speaks(roll: HeadRoll) -> None:
    roll.hear("a", 0.0)
    roll.hear("b", 1.5)
    roll.look(2.0)
    assert roll.active == "a"
    roll.look(2.1)
    assert roll.active == "b"
    roll.hear("a", 3.0)  # it was but late, and stands by from now on
    assert roll.active == "b"


def test_a_silent_head_that_is_alone_stays_active(roll: HeadRoll) -> None:
    roll.hear("a", 0.0)
    roll.look(50.0)
    assert roll.active == "a"
    roll.hear("b", 51.0)
    assert roll.active == "b"


def test_a_head_that_leaves_hands_over_at_once(roll: HeadRoll) -> None:
    roll.hear("a", 0.0)
    roll.hear("b", 0.1)
    roll.hear("c", 0.2)
    roll.leave("b", 0.3)
    assert roll.active == "a"
    roll.leave("a", 0.4)
    assert roll.active == "c"
    roll.leave("c", 0.5)
    assert roll.active == ""
    roll.leave("nobody", 0.6)
    assert roll.active == ""


def test_the_dead_are_forgotten(roll: HeadRoll) -> None:
    for number in range(100):
        roll.hear(f"dead {number}", 0.0)
    roll.look(FORGOTTEN_S + 1)
    assert len(roll._heard) == 0
