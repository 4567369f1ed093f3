"""Convolutions by templates: by Triton's interpreter, and their choice by played kernels."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreted import Call, interpreter
from torch import fx, nn

from split_infer_ros.engines.scheduled_convolutions import limits_of, schedule_convolutions
from split_infer_ros.measurements.database import Database
from split_infer_ros.search.space import Config, no_rule
from split_infer_ros.vision_ops import fastest
from split_infer_ros.vision_ops import schedules as module
from split_infer_ros.vision_ops.convolution import ScheduledConv2d, operator_of
from split_infer_ros.vision_ops.fastest import ROUNDS
from split_infer_ros.vision_ops.schedules import (
    DEPTHWISE,
    POINTWISE,
    SEARCH_S,
    SPACES,
    TRIAL_S,
    TRIALS,
    best_schedule,
)

INF = float("inf")


@pytest.fixture(scope="module")
def call() -> Iterator[Call]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    with interpreter() as call:
        yield call


def case(convolution: nn.Conv2d, shape: tuple[int, ...]) -> tuple[torch.Tensor, ScheduledConv2d]:
    random = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=random), ScheduledConv2d(convolution, 0.0, 0.5)


@pytest.mark.parametrize(("given", "wanted", "unrolled"), [(32, 16, 1), (23, 21, 2)])
def test_pointwise_is_torchs(call: Call, given: int, wanted: int, unrolled: int) -> None:
    torch.manual_seed(0)
    maps, scheduled = case(nn.Conv2d(given, wanted, 1).requires_grad_(False), (2, given, 3, 7))
    found = call(
        *("convolution", "pointwise", maps, scheduled._weights, scheduled._bias, 0.0, 0.5, False),
        *(32, 16, 16, unrolled, 4),
    )
    torch.testing.assert_close(found, scheduled(maps), atol=1e-5, rtol=1e-5)
    assert 0 < found.mean() < 0.5


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "unrolled"), [(3, 1, 1, True), (3, 2, 1, False), (5, 2, 0, True)]
)
def test_depthwise_is_torchs(call: Call, kernel: int, stride: int, padding: int, unrolled: bool) -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(20, 20, kernel, stride, padding, groups=20, bias=unrolled).requires_grad_(False)
    maps, scheduled = case(convolution, (2, 20, 7, 9))
    found = call(
        *("convolution", "depthwise", maps, scheduled._weights, scheduled._bias, 0.0, 0.5, kernel, stride, padding),
        *(2, 4, 16, unrolled, 4),
    )
    torch.testing.assert_close(found, scheduled(maps), atol=1e-5, rtol=1e-5)
    assert 0 < found.mean() < 0.5


def test_what_is_not_a_number_stays_so(call: Call) -> None:
    maps = torch.full((1, 16, 2, 2), torch.nan).contiguous(memory_format=torch.channels_last)
    given = maps, torch.ones(16, 16), torch.zeros(16), 0.0, 6.0, False
    found = call("convolution", "pointwise", *given, 16, 16, 16, 1, 4)
    assert found.isnan().all()


def test_schedules_fit_their_templates() -> None:
    for name in ("pixels", "channels", "depth"):
        assert all(value >= 16 and value.bit_count() == 1 for value in SPACES[POINTWISE].knobs[name])
    for name in ("rows", "columns", "channels"):
        assert all(value.bit_count() == 1 for value in SPACES[DEPTHWISE].knobs[name])


@pytest.mark.parametrize(
    ("convolution", "operator"),
    [
        (nn.Conv2d(8, 4, 1), POINTWISE),
        (nn.Conv2d(8, 8, 3, 2, 1, groups=8), DEPTHWISE),
        (nn.Conv2d(8, 8, 3), None),
        (nn.Conv2d(8, 8, 1, 2), None),
        (nn.Conv2d(8, 16, 3, groups=8), None),
        (nn.Conv2d(8, 8, (1, 3), groups=8), None),
        (nn.Conv2d(8, 8, 3, padding="same", groups=8), None),
        (nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect", groups=8), None),
        (nn.Conv2d(8, 8, 3, dilation=2, groups=8), None),
        (nn.Conv2d(8, 8, 1, dtype=torch.float64), None),
        (nn.Identity(), None),
    ],
    ids=repr,
)
def test_which_convolutions_have_a_template(convolution: nn.Module, operator: str | None) -> None:
    assert operator_of(convolution) == operator


def test_a_network_keeps_its_results_and_its_modules() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 1), nn.ReLU6(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Conv2d(8, 8, 3)),
        *(nn.SiLU(), nn.Conv2d(8, 4, 1), nn.SiLU()),
    ).requires_grad_(False)
    graph, images = fx.symbolic_trace(net), torch.randn(1, 3, 12, 12)
    schedule_convolutions(graph)
    torch.testing.assert_close(graph(images), net(images), atol=1e-5, rtol=1e-5)  # other kernels of small sums
    assert sum(isinstance(each, ScheduledConv2d) for each in graph.modules()) == 3
    assert limits_of(nn.ReLU6()) == (0, 6)
    assert limits_of(nn.ReLU()) == (0, INF)
    assert limits_of(nn.SiLU()) is None


class Played:
    """A kernel of which one schedule works better than the others, and some not at all."""

    def __init__(self) -> None:
        self.tried: list[Config] = []

    def __call__(self, schedule: Config) -> None:
        if not self.tried or self.tried[-1] != schedule:
            self.tried.append(schedule)
        if schedule["channels"] == 128:
            raise RuntimeError("out of shared memory")


def test_schedules_are_searched_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[Any, Any] = {}
    monkeypatch.setattr(module, "_known", known)
    database, kernel, values = Database(tmp_path / "tuning.jsonl"), Played(), torch.zeros(1)
    best = best_schedule(POINTWISE, values, [50, 3], kernel, no_rule, database)
    assert len(kernel.tried) == TRIALS
    assert best in kernel.tried
    assert best["channels"] != 128
    assert best_schedule(POINTWISE, values, [60, 4], kernel, no_rule, database) == best, "of the same power of two"
    known.clear()
    assert best_schedule(POINTWISE, values, [50, 3], kernel, no_rule, database) == best, "of another process"
    assert len(kernel.tried) == TRIALS
    records = database.records()
    assert all(record.config in SPACES[POINTWISE] for record in records)
    assert all((record.error is None) == (record.config["channels"] != 128) for record in records)
    assert all(one.config != other.config for one, other in itertools.combinations(records, 2))


class Clock:
    """Time that passes in kernels alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = time = monotonic


class Slow(Played):
    """A kernel that is compiled in so many seconds; each run takes half as long again as the one before."""

    def __init__(self, clock: Clock, compile_s: float, run_s: float = 0.0) -> None:
        super().__init__()
        self._clock, self._compile_s, self._run_s = clock, compile_s, run_s

    def __call__(self, schedule: Config) -> None:
        tried = len(self.tried)
        super().__call__(schedule)
        self._clock.now += self._compile_s if len(self.tried) > tried else self._run_s
        self._run_s *= 1.5


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for each in (module, fastest):
        monkeypatch.setattr(each, "time", clock)
    monkeypatch.setattr(module, "_known", {})
    monkeypatch.setattr(module, "_time", module._Time())
    return clock


def test_searches_of_a_process_end_in_time(tmp_path: Path, clock: Clock) -> None:
    database, kernel, values = Database(tmp_path / "tuning.jsonl"), Slow(clock, TRIAL_S - 0.1), torch.zeros(1)
    best_schedule(POINTWISE, values, [50, 3], kernel, no_rule, database)
    assert SEARCH_S - TRIAL_S < clock.now <= SEARCH_S
    assert len(kernel.tried) == len(database.records()) < TRIALS
    tried = len(kernel.tried)
    assert best_schedule(POINTWISE, values, [500, 3], kernel, no_rule, database) == SPACES[POINTWISE].default
    assert len(kernel.tried) == tried, "the time is the process's"
    assert not module.may_search()
    module.search_without_limit()
    assert module.may_search()


def test_a_trial_ends_within_the_time_of_the_search(tmp_path: Path, clock: Clock) -> None:
    kernel = Slow(clock, 0.0, 0.1)  # all 12 groups, which never agree, would take months
    best_schedule(POINTWISE, torch.zeros(1), [50, 3], kernel, no_rule, Database(tmp_path / "tuning.jsonl"))
    group = 1.5**ROUNDS  # by which the last one takes longer than all before it
    assert clock.now < SEARCH_S * group * 1.5


def test_what_the_rule_leaves_out_is_not_tried(tmp_path: Path, clock: Clock) -> None:
    def rule(schedule: Config) -> str | None:
        return "No." if schedule["warps"] != 4 else None

    database, kernel, values = Database(tmp_path / "tuning.jsonl"), Played(), torch.zeros(1)
    best_schedule(POINTWISE, values, [50, 3], kernel, no_rule, database)
    assert {schedule["warps"] for schedule in kernel.tried} != {4}
    module._known.clear()
    best = best_schedule(POINTWISE, values, [50, 3], (again := Played()), rule, database)
    assert {schedule["warps"] for schedule in again.tried} == {best["warps"]} == {4}
