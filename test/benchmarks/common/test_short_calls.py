"""Has each rival as many passes as the others, and does a turn give the time of one call?"""

from __future__ import annotations

import time
from collections import Counter
from functools import partial

import pytest

from benchmarks.common.short_calls import ShortCalls


def test_rivals_alternate_within_a_turn() -> None:
    calls: list[str] = []
    turn = ShortCalls({name: partial(calls.append, name) for name in "ab"}, pass_s=0.0)
    calls.clear()
    turn.passes = 4
    assert set(turn(0)) == {"a", "b"}
    assert "".join(calls) == "abbabaab"  # none is always first, or always right behind the same one


def test_short_calls_are_timed_many_at_once() -> None:
    waits: list[int] = []
    turn = ShortCalls({"short": lambda: None}, pass_s=1e-3, turn_s=5e-3, wait=lambda: waits.append(1))
    waits.clear()
    assert 0 < turn(0)["short"] < 1e-4
    assert len(waits) > turn.passes  # several calls a pass, and the device is waited for after each


def test_a_long_call_has_one_pass() -> None:
    calls: Counter[str] = Counter()

    def slow() -> None:
        calls["slow"] += 1
        time.sleep(0.01)

    turn = ShortCalls({"slow": slow}, pass_s=1e-3, turn_s=1e-3)
    assert calls["slow"] == 1  # the first call was so long that no second one sets up or tells the time
    assert turn(0)["slow"] == pytest.approx(0.01, rel=0.5) or turn(1)["slow"] >= 0.01
    assert turn.passes == 1
    assert turn.usage.row("slow")["cpu_busy"] < 0.5
