from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from split_infer_ros.tuning.database import Database
from split_infer_ros.vision_ops import fastest as module
from split_infer_ros.vision_ops.fastest import PLAIN, ROUNDS, TRITON, choosing, fastest

VALUES = torch.zeros(1)


class Form:
    """Something that takes a while, and counts."""

    def __init__(self, seconds: float, error: str = "") -> None:
        self.calls, self._seconds, self._error = 0, seconds, error

    def __call__(self) -> Form:
        self.calls += 1
        if self._error:
            raise RuntimeError(self._error)
        time.sleep(self._seconds)
        return self


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "tuning.jsonl")


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Another process."""
    monkeypatch.setattr(module, "_known", {})
    return module._known.clear


def test_the_faster_form_is_measured_once_for_sizes_that_are_alike(
    database: Database, forget: Callable[[], None]
) -> None:
    slow, fast = Form(0.01), Form(0.0)
    forms = {PLAIN: slow, TRITON: fast}
    assert fastest("sum", VALUES, [100, 3], forms, database) is fast
    measured = slow.calls
    assert measured == 1 + ROUNDS
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


def test_a_choice_that_cannot_be_kept_still_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    fast = Form(0.0)
    assert fastest("sum", VALUES, [], {PLAIN: Form(0.01), TRITON: fast}, Database(tmp_path / "file" / "x")) is fast
    assert "the choice is not kept" in caplog.text
