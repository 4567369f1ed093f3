from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.steady import NUM_AGREEING
from split_infer_ros.vision_ops import implementations as module
from split_infer_ros.vision_ops.implementations import (
    CALLS_PER_GROUP,
    ImplementationChoice,
    forget_choices,
    run_fastest,
    use_implementation,
)

PLAIN, TRITON = ImplementationChoice.PLAIN, ImplementationChoice.TRITON
VALUES = torch.zeros(1)


class SimulatedClock:
    """Time that passes only in implementations."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    time = staticmethod(time.time)


CLOCK = SimulatedClock()


class SimulatedImplementation:
    """Takes some simulated seconds, by ``factor`` more with each call, counts its calls, and fails if told to."""

    def __init__(self, seconds: float, error: str = "", factor: float = 1.0) -> None:
        self.calls, self.factor, self._seconds, self._error = 0, factor, seconds, error

    def __call__(self) -> SimulatedImplementation:
        self.calls += 1
        if self._error:
            raise RuntimeError(self._error)
        CLOCK.now += self._seconds * self.factor**self.calls
        return self


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "tuning.jsonl")


@pytest.fixture(autouse=True)
def of_this_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "time", CLOCK)
    forget_choices()
    yield
    forget_choices()


def test_the_fastest_is_measured_once_for_similar_sizes(database: Database) -> None:
    slow, fast = SimulatedImplementation(0.01), SimulatedImplementation(0.0)
    implementations = {PLAIN: slow, TRITON: fast}
    assert run_fastest("sum", VALUES, [100, 3], implementations, database=database) is fast
    measured = slow.calls
    assert measured == 1 + NUM_AGREEING * CALLS_PER_GROUP
    assert run_fastest("sum", VALUES, [128, 4], implementations, database=database) is fast
    forget_choices()  # as if another process went on
    assert run_fastest("sum", VALUES, [100, 3], implementations, database=database) is fast
    assert slow.calls == measured
    run_fastest("sum", VALUES, [129, 3], implementations, database=database)
    assert slow.calls == 2 * measured
    assert {record.config["form"] for record in database.records()} == {"plain", "triton"}


def test_a_forced_implementation_runs_unmeasured(database: Database) -> None:
    plain, other = SimulatedImplementation(0.0), SimulatedImplementation(0.0)
    implementations = {PLAIN: plain, TRITON: other}
    with use_implementation(TRITON):
        assert run_fastest("sum", VALUES, [1], implementations, database=database) is other
        found = run_fastest("sum", VALUES, [1], {PLAIN: plain}, database=database)
        assert found is plain, "an operator without that implementation is measured"
    assert other.calls == 1
    run_fastest("sum", VALUES, [2], implementations, database=database)
    assert other.calls >= 1 + CALLS_PER_GROUP, "outside of the context it is measured"


def test_a_failure_is_remembered_and_not_used(database: Database) -> None:
    plain, broken = SimulatedImplementation(0.001), SimulatedImplementation(0.0, "does not compile")
    implementations = {PLAIN: plain, TRITON: broken}
    assert run_fastest("sum", VALUES, [5], implementations, database=database) is plain
    forget_choices()  # as if another process went on
    assert run_fastest("sum", VALUES, [5], implementations, database=database) is plain
    assert broken.calls == 1
    (error,) = [record.error for record in database.records() if record.config["form"] == "triton"]
    assert error == "RuntimeError: does not compile"


def test_each_process_warns_once_of_a_failure(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    implementations = {PLAIN: SimulatedImplementation(0.001), TRITON: SimulatedImplementation(0.0, "does not compile")}
    for _ in range(2):  # the second process knows the failure only from the database
        for size in (5, 50):
            run_fastest("sum", VALUES, [size], implementations, database=database)
        assert caplog.text.count("sum: form triton fails (RuntimeError: does not compile) and is not used.") == 1
        caplog.clear()
        forget_choices()  # as if another process went on


def test_uncertain_times_are_not_used_but_measured_again(database: Database) -> None:
    plain, doubtful = SimulatedImplementation(1.0), SimulatedImplementation(1e-6, factor=1.1)
    implementations = {PLAIN: plain, TRITON: doubtful}
    assert run_fastest("sum", VALUES, [5], implementations, database=database) is plain
    assert [record.uncertain for record in database.records()] == [False, True]
    forget_choices()  # as if another process went on
    doubtful.factor = 1.0
    assert run_fastest("sum", VALUES, [5], implementations, database=database) is doubtful


def test_a_choice_that_cannot_be_stored_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    fast = SimulatedImplementation(0.0)
    implementations = {PLAIN: SimulatedImplementation(0.01), TRITON: fast}
    assert run_fastest("sum", VALUES, [], implementations, database=Database(tmp_path / "file" / "x")) is fast
    assert "the choice is not kept" in caplog.text


def test_a_choice_that_may_not_be_kept_stays_in_process(database: Database) -> None:
    fast = SimulatedImplementation(0.0)
    implementations = {PLAIN: SimulatedImplementation(1.0), TRITON: fast}
    for _ in range(2):
        assert run_fastest("sum", VALUES, [], implementations, database=database, may_keep=lambda: False) is fast
    assert fast.calls == 1 + NUM_AGREEING * CALLS_PER_GROUP + 2
    assert not database.records()


def test_without_time_the_library_runs_unless_times_are_known(database: Database) -> None:
    implementations = {PLAIN: SimulatedImplementation(0.01), TRITON: SimulatedImplementation(0.0)}

    def fastest(has_time: bool) -> object:
        forget_choices()  # as another process
        return run_fastest(
            "sum", VALUES, [8], implementations, database=database, search_time=lambda: nullcontext(has_time)
        )

    assert fastest(False) is implementations[PLAIN]
    assert implementations[TRITON].calls == 0
    assert fastest(True) is implementations[TRITON]
    assert fastest(False) is implementations[TRITON]
