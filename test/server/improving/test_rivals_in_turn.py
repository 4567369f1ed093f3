"""Kinds of rivals follow each other: each is exhausted before the next one proposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from split_infer_ros.server.improving.rivals import Rival, TakeImage
from split_infer_ros.server.improving.rivals_in_turn import RivalsInTurn
from split_infer_ros.server.improving.turns import Verdict
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.heat import Processor

MODEL = cast(SplitModel, None)  # no kind of this test looks at it
WON = Verdict(2.0, 1.9, 2.1)


class Kind:
    """Proposes rivals of given names, and notes what it hears."""

    def __init__(self, *names: str, summary: str = "") -> None:
        self._left = list(names)
        self.summary = summary
        self.heard: list[str] = []

    def next(
        self, model: SplitModel, split_point: str, is_over: Callable[[], bool], take_image: TakeImage
    ) -> Rival | None:
        self.heard.append("next")
        return Rival(self._left.pop(0), model) if self._left else None

    def settle(self, verdict: Verdict) -> None:
        self.heard.append("settle")

    def refuse(self, reason: str) -> None:
        self.heard.append(reason)

    def again(self, hot: Processor | None) -> None:
        self.heard.append(f"again {hot}")

    def interrupt(self) -> None:
        self.heard.append("interrupt")

    def close(self) -> None:
        self.heard.append("close")


def proposed(rivals: RivalsInTurn) -> str | None:
    rival = rivals.next(MODEL, "output", lambda: False, lambda: None)
    return None if rival is None else rival.name


def test_a_kind_follows_once_the_kind_before_has_none_left() -> None:
    first, second = Kind("a", "b"), Kind("c")
    rivals = RivalsInTurn([first, second])
    assert [proposed(rivals) for _ in range(4)] == ["a", "b", "c", None]
    assert first.heard == ["next", "next", "next", "close"], "it is asked again only until it has none left"
    assert proposed(rivals) is None, "the end stays the end"


def test_the_kind_that_proposed_hears_the_verdict() -> None:
    first, second = Kind("a"), Kind("b", "c")
    rivals = RivalsInTurn([first, second])
    proposed(rivals)
    rivals.settle(WON)
    proposed(rivals)
    rivals.refuse("It fails.")
    proposed(rivals)
    rivals.settle(WON)
    assert first.heard == ["next", "settle", "next", "close"]
    assert second.heard == ["next", "It fails.", "next", "settle"]


def test_no_kind_is_skipped_because_a_search_was_interrupted() -> None:
    is_over = [True]

    class Interrupted(Kind):
        def next(
            self, model: SplitModel, split_point: str, is_over_now: Callable[[], bool], take_image: TakeImage
        ) -> Rival | None:
            is_over[0] = True  # while its trial runs
            return None

    first, second = Interrupted(), Kind("b")
    rivals = RivalsInTurn([first, second])
    assert rivals.next(MODEL, "output", lambda: is_over[0], lambda: None) is None
    is_over[0] = False
    assert rivals.next(MODEL, "output", lambda: is_over[0], lambda: None) is None
    assert second.heard == []


def test_all_kinds_are_interrupted_and_closed() -> None:
    kinds = Kind(), Kind()
    rivals = RivalsInTurn(kinds)
    rivals.interrupt()
    rivals.close()
    assert [kind.heard for kind in kinds] == [["interrupt", "close"]] * 2


def test_the_summary_leaves_out_kinds_that_say_nothing() -> None:
    assert RivalsInTurn([Kind(summary="a is slower"), Kind(), Kind(summary="b stays")]).summary == (
        "a is slower; b stays"
    )
    assert RivalsInTurn([Kind()]).summary == ""


def test_heat_begins_anew_with_the_first_kind() -> None:
    first, second = Kind("a"), Kind("b", "c")
    rivals = RivalsInTurn([first, second])
    assert [proposed(rivals) for _ in range(2)] == ["a", "b"]
    for hot in (Processor.CPU, None):
        first.heard.clear()
        second.heard.clear()
        rivals.again(hot)
        assert second.heard[-1] == first.heard[-1] == f"again {hot}"
        assert "close" in second.heard + first.heard, "the process of the kind that proposed would hold memory"
        proposed(rivals)
        assert "next" in first.heard
