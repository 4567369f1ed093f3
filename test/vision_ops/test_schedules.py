"""The search of schedules, with simulated kernels, and what it learns from trials at other sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.search.space import Config, Space, no_rule
from split_infer_ros.vision_ops import implementations
from split_infer_ros.vision_ops import schedules as module
from split_infer_ros.vision_ops.implementations import CALLS_PER_GROUP
from split_infer_ros.vision_ops.schedules import (
    MAX_TRIALS,
    MAX_TRIALS_WITH_OTHERS,
    SEARCH_S,
    SPACES,
    TRIAL_S,
    ConvolutionTemplate,
    best_schedule,
    forget_schedules,
    limit_search,
    samples_at_other_sizes,
    size_features,
)

POINTWISE, WINDOWED = ConvolutionTemplate.POINTWISE, ConvolutionTemplate.WINDOWED


class SimulatedKernel:
    """A kernel that records its schedules; schedules with 128 channels fail."""

    def __init__(self) -> None:
        self.tried: list[Config] = []

    def __call__(self, schedule: Config) -> None:
        if not self.tried or self.tried[-1] != schedule:
            self.tried.append(schedule)
        if schedule["channels"] == 128:
            raise RuntimeError("out of shared memory")


@pytest.fixture(autouse=True)
def of_this_test() -> Iterator[None]:
    forget_schedules()
    limit_search(SEARCH_S)
    yield
    forget_schedules()
    limit_search(SEARCH_S)


def test_schedules_are_searched_once_and_stored(tmp_path: Path) -> None:
    database, kernel, values = Database(tmp_path / "tuning.jsonl"), SimulatedKernel(), torch.zeros(1)
    best = best_schedule(POINTWISE, values, [50, 3], run=kernel, rule=no_rule, database=database)
    assert len(kernel.tried) == MAX_TRIALS
    assert best in kernel.tried
    assert best["channels"] != 128
    assert best_schedule(POINTWISE, values, [60, 4], run=kernel, rule=no_rule, database=database) == best, (
        "the sizes round up to the same powers of two"
    )
    forget_schedules()
    assert best_schedule(POINTWISE, values, [50, 3], run=kernel, rule=no_rule, database=database) == best, (
        "another process reads the records"
    )
    assert len(kernel.tried) == MAX_TRIALS
    records = database.records()
    assert all(record.config in SPACES[POINTWISE] for record in records)
    assert all((record.error is None) == (record.config["channels"] != 128) for record in records)
    assert all(one.config != other.config for one, other in itertools.combinations(records, 2))


class SimulatedClock:
    """Time that passes only in kernels."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = time = monotonic


class SlowKernel(SimulatedKernel):
    """A kernel that takes simulated seconds to compile and to run; each run takes half as long again."""

    def __init__(self, clock: SimulatedClock, compile_s: float, run_s: float = 0.0) -> None:
        super().__init__()
        self._clock, self._compile_s, self._run_s = clock, compile_s, run_s

    def __call__(self, schedule: Config) -> None:
        tried = len(self.tried)
        super().__call__(schedule)
        self._clock.now += self._compile_s if len(self.tried) > tried else self._run_s
        self._run_s *= 1.5


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimulatedClock:
    clock = SimulatedClock()
    for each in (module, implementations):
        monkeypatch.setattr(each, "time", clock)
    return clock


def test_searches_of_a_process_end_in_time(tmp_path: Path, clock: SimulatedClock) -> None:
    database, kernel, values = Database(tmp_path / "tuning.jsonl"), SlowKernel(clock, TRIAL_S - 0.1), torch.zeros(1)
    best_schedule(POINTWISE, values, [50, 3], run=kernel, rule=no_rule, database=database)
    assert SEARCH_S - TRIAL_S < clock.now <= SEARCH_S
    assert len(kernel.tried) == len(database.records()) < MAX_TRIALS
    tried = len(kernel.tried)
    assert (
        best_schedule(POINTWISE, values, [500, 3], run=kernel, rule=no_rule, database=database)
        == SPACES[POINTWISE].default
    )
    assert len(kernel.tried) == tried, "all searches of a process share its time"
    assert not module.has_search_time()
    limit_search(math.inf)
    assert module.has_search_time()


def test_others_spend_the_time_of_the_searches(clock: SimulatedClock) -> None:
    with module.search_time() as has_time:
        assert has_time
        clock.now += SEARCH_S - TRIAL_S
    with suppress(ValueError), module.search_time() as has_time:
        assert has_time
        clock.now += 1.0
        raise ValueError("an error takes time as well")
    with module.search_time() as has_time:
        assert not has_time


def test_a_trial_ends_within_the_time_of_the_search(tmp_path: Path, clock: SimulatedClock) -> None:
    kernel = SlowKernel(clock, 0.0, 0.1)  # its 12 groups never agree, and all of them would take months
    database = Database(tmp_path / "tuning.jsonl")
    best_schedule(POINTWISE, torch.zeros(1), [50, 3], run=kernel, rule=no_rule, database=database)
    group = 1.5**CALLS_PER_GROUP  # by which the last group takes longer than all before it
    assert clock.now < SEARCH_S * group * 1.5


def test_rejected_schedules_are_not_tried(tmp_path: Path, clock: SimulatedClock) -> None:
    def rule(schedule: Config) -> str | None:
        return "No." if schedule["warps"] != 4 else None

    database, kernel, values = Database(tmp_path / "tuning.jsonl"), SimulatedKernel(), torch.zeros(1)
    best_schedule(POINTWISE, values, [50, 3], run=kernel, rule=no_rule, database=database)
    assert {schedule["warps"] for schedule in kernel.tried} != {4}
    forget_schedules()
    best = best_schedule(POINTWISE, values, [50, 3], run=(again := SimulatedKernel()), rule=rule, database=database)
    assert {schedule["warps"] for schedule in again.tried} == {best["warps"]} == {4}


class TiledKernel(SimulatedKernel):
    """A kernel on a simulated GPU of 100 multiprocessors: large tiles reuse more, and small ones fill the last wave."""

    def __init__(self, clock: SimulatedClock, pixels: int, channels: int) -> None:
        super().__init__()
        self._clock, self._pixels, self._channels = clock, pixels, channels

    def __call__(self, schedule: Config) -> None:
        if not self.tried or self.tried[-1] != schedule:
            self.tried.append(schedule)
        self._clock.now += self.cost_s(schedule)

    def cost_s(self, schedule: Config) -> float:
        pixels, channels, depth, unrolled, warps = (int(schedule[name]) for name in SPACES[WINDOWED].knobs)
        waves = math.ceil(math.ceil(self._pixels / pixels) * math.ceil(self._channels / channels) / 100)
        per_tile = (pixels * channels) ** 0.7 * (1 + abs(math.log2(pixels * channels / warps / 1024)))
        return 1e-6 * waves * per_tile * {16: 1.3, 32: 1.0, 64: 1.1}[depth] * (1.1 if unrolled == 1 else 1.0)

    def best_s(self) -> float:
        return min(map(self.cost_s, SPACES[WINDOWED]))


def test_other_sizes_teach_what_to_try(tmp_path: Path, clock: SimulatedClock) -> None:
    pytest.importorskip("sklearn", reason="the cost model needs scikit-learn")
    database, values = Database(tmp_path / "tuning.jsonl"), torch.zeros(1)
    first = TiledKernel(clock, 4096, 64)
    best_schedule(WINDOWED, values, [4096, 64], run=first, rule=no_rule, database=database)
    assert len(first.tried) == MAX_TRIALS
    taught, alone = TiledKernel(clock, 16384, 64), TiledKernel(clock, 16384, 64)
    found = best_schedule(WINDOWED, values, [16384, 64], run=taught, rule=no_rule, database=database)
    assert len(taught.tried) == MAX_TRIALS_WITH_OTHERS
    assert taught.cost_s(found) < 1.05 * taught.best_s()
    forget_schedules()
    best_schedule(WINDOWED, values, [16384, 64], run=alone, rule=no_rule, database=Database(tmp_path / "empty.jsonl"))
    of_three = [min(map(kernel.cost_s, kernel.tried[:3])) for kernel in (taught, alone)]
    assert of_three[0] < 0.95 * of_three[1]


def test_without_time_other_sizes_choose(tmp_path: Path, clock: SimulatedClock) -> None:
    pytest.importorskip("sklearn", reason="the cost model needs scikit-learn")
    database, values = Database(tmp_path / "tuning.jsonl"), torch.zeros(1)
    kernel = TiledKernel(clock, 4096, 64)
    best_schedule(WINDOWED, values, [4096, 64], run=kernel, rule=no_rule, database=database)
    limit_search(0.0)
    late = TiledKernel(clock, 8192, 64)
    chosen = best_schedule(WINDOWED, values, [8192, 64], run=late, rule=no_rule, database=database)
    assert late.tried == []
    assert late.cost_s(chosen) < late.cost_s(SPACES[WINDOWED].default)
    of_others = best_schedule(POINTWISE, values, [8192, 64], run=late, rule=no_rule, database=database)
    assert of_others == SPACES[POINTWISE].default, "another template teaches nothing"


HERE = Key.here("cpu")
SPACE = Space({"tile": (1, 2, 4)})


def task_at(*sizes: int, operator: str = "windowed schedule", precision: str = "float16") -> dict[str, Any]:
    return {"operator": operator, "shapes": [list(sizes)], "precision": precision}


def add_costs(database: Database, of: dict[str, Any], costs: dict[int, float], key: Key = HERE, **facts: bool) -> None:
    database.add(key.record(of, {"tile": tile}, (cost,), time=1.0, facts=facts) for tile, cost in costs.items())


def test_costs_at_other_sizes_are_relative_to_their_default(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuning.jsonl")
    add_costs(database, task_at(1000, 10), {1: 2.0, 2: 1.0})
    add_costs(database, task_at(100, 10), {1: 5.0, 4: 10.0})
    samples = samples_at_other_sizes(database, HERE, task_at(10, 10), SPACE)
    found = [(sample.config["tile"], sample.relative, sample.features["size 0"]) for sample in samples]
    assert found == [
        (1, 0.0, 2.0),
        (4, pytest.approx(math.log(2)), 2.0),
        (1, 0.0, 3.0),
        (2, pytest.approx(-math.log(2)), 3.0),
    ]
    assert size_features(task_at(10, 0)) == {"size 0": 1.0, "size 1": 0.0}


def test_the_nearest_sizes_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SAMPLES", 3)
    database = Database(tmp_path / "tuning.jsonl")
    for size in (100_000, 10, 1000):
        add_costs(database, task_at(size), {1: 1.0, 2: 2.0})
    samples = samples_at_other_sizes(database, HERE, task_at(1), SPACE)
    assert [sample.features["size 0"] for sample in samples] == [1.0, 1.0, 3.0]


def test_what_says_nothing_of_this_task_is_left_out(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuning.jsonl")
    wanted = task_at(8, 8)
    add_costs(database, wanted, {1: 1.0})  # its own
    add_costs(database, task_at(8, 4, operator="pointwise schedule"), {1: 1.0})
    add_costs(database, task_at(8, 4, precision="float32"), {1: 1.0})
    add_costs(database, task_at(8, 4), {3: 1.0})  # not in the space
    add_costs(database, task_at(8, 4), {1: 1.0}, uncertain=True)
    add_costs(database, task_at(8, 4), {1: 1.0}, replace(HERE, target={**HERE.target, "device": "another"}))
    for shapes in (None, "8", [], [[8, 4], [8, 4]], [8], [[8]], [["8", 4]], [[True, 4]]):  # of a file from elsewhere
        add_costs(database, {**wanted, "shapes": shapes}, {1: 1.0})
    assert samples_at_other_sizes(database, HERE, wanted, SPACE) == []
    add_costs(database, task_at(8, 4), {1: 1.0})
    assert len(samples_at_other_sizes(database, HERE, wanted, SPACE)) == 1
