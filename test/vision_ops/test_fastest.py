from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.steady import NUM_AGREEING
from split_infer_ros.vision_ops import fastest as module
from split_infer_ros.vision_ops.fastest import PLAIN, ROUNDS, TRITON, choosing, fastest

VALUES = torch.zeros(1)


class Clock:
    """Time that passes in forms alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    time = staticmethod(time.time)


CLOCK = Clock()


class Form:
    """Something that takes a while, and counts; each call takes by a factor longer."""

    def __init__(self, seconds: float, error: str = "", factor: float = 1.0) -> None:
        self.calls, self.factor, self._seconds, self._error = 0, factor, seconds, error

    def __call__(self) -> Form:
        self.calls += 1
        if self._error:
            raise RuntimeError(self._error)
        CLOCK.now += self._seconds * self.factor**self.calls
        return self


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "tuning.jsonl")


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Another process."""
    monkeypatch.setattr(module, "time", CLOCK)
    monkeypatch.setattr(module, "_known", {})
    monkeypatch.setattr(module, "_warned", set())

    def clear() -> None:
        module._known.clear()
        module._warned.clear()

    return clear


def test_the_faster_form_is_measured_once_for_sizes_that_are_alike(
    database: Database, forget: Callable[[], None]
) -> None:
    slow, fast = Form(0.01), Form(0.0)
    forms = {PLAIN: slow, TRITON: fast}
    assert fastest("sum", VALUES, [100, 3], forms, database) is fast
    measured = slow.calls
    assert measured == 1 + NUM_AGREEING * ROUNDS
    assert fastest("sum", VALUES, [128, 4], forms, database) is fast
    forget()
    assert fastest("sum", VALUES, [100, 3], forms, database) is fast
    assert slow.calls == measured
    fastest("sum", VALUES, [129, 3], forms, database)
    assert slow.calls == 2 * measured
    assert {record.config["form"] for record in database.records()} == {PLAIN, TRITON}


def test_a_choice_is_taken_unmeasured(database: Database) -> None:
    plain, other = Form(0.0), Form(0.0)
    forms = {PLAIN: plain, TRITON: other}
    with choosing(TRITON):
        assert fastest("sum", VALUES, [1], forms, database) is other
        assert fastest("sum", VALUES, [1], {PLAIN: plain}, database) is plain, "what has no such form is measured"
    assert other.calls == 1
    fastest("sum", VALUES, [2], forms, database)
    assert other.calls >= 1 + ROUNDS, "as it is outside"


def test_a_form_that_fails_is_not_used_and_is_known_to_fail(database: Database, forget: Callable[[], None]) -> None:
    plain, broken = Form(0.001), Form(0.0, "does not compile")
    forms = {PLAIN: plain, TRITON: broken}
    assert fastest("sum", VALUES, [5], forms, database) is plain
    forget()
    assert fastest("sum", VALUES, [5], forms, database) is plain
    assert broken.calls == 1
    (error,) = [record.error for record in database.records() if record.config["form"] == TRITON]
    assert error == "RuntimeError: does not compile"


def test_each_process_warns_once_of_a_form_that_fails(
    database: Database, forget: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    forms = {PLAIN: Form(0.001), TRITON: Form(0.0, "does not compile")}
    for _ in range(2):  # the second process knows it from the database alone
        for size in (5, 50):
            fastest("sum", VALUES, [size], forms, database)
        assert caplog.text.count("sum: form triton fails (RuntimeError: does not compile) and is not used.") == 1
        caplog.clear()
        forget()


def test_what_is_uncertain_is_not_used_and_is_measured_again(database: Database, forget: Callable[[], None]) -> None:
    plain, doubtful = Form(1.0), Form(1e-6, factor=1.1)
    forms = {PLAIN: plain, TRITON: doubtful}
    assert fastest("sum", VALUES, [5], forms, database) is plain
    assert [record.uncertain for record in database.records()] == [False, True]
    forget()
    doubtful.factor = 1.0
    assert fastest("sum", VALUES, [5], forms, database) is doubtful


def test_a_choice_that_cannot_be_kept_still_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    fast = Form(0.0)
    assert fastest("sum", VALUES, [], {PLAIN: Form(0.01), TRITON: fast}, Database(tmp_path / "file" / "x")) is fast
    assert "the choice is not kept" in caplog.text


def test_a_choice_that_does_not_last_is_this_processs_alone(database: Database) -> None:
    fast = Form(0.0)
    for _ in range(2):
        assert fastest("sum", VALUES, [], {PLAIN: Form(1.0), TRITON: fast}, database, lambda: False) is fast
    assert fast.calls == 1 + NUM_AGREEING * ROUNDS + 2
    assert not database.records()
