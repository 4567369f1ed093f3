"""Convolutions by templates, run by Triton's interpreter, and the search of schedules with simulated kernels."""

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
from split_infer_ros.vision_ops import implementations
from split_infer_ros.vision_ops import schedules as module
from split_infer_ros.vision_ops.convolution import ScheduledConv2d, template_of
from split_infer_ros.vision_ops.implementations import CALLS_PER_GROUP
from split_infer_ros.vision_ops.schedules import (
    MAX_TRIALS,
    SEARCH_S,
    SPACES,
    TRIAL_S,
    ConvolutionTemplate,
    best_schedule,
)

INF = float("inf")
POINTWISE, DEPTHWISE = ConvolutionTemplate


@pytest.fixture(scope="module")
def call() -> Iterator[Call]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    with interpreter() as call:
        yield call


def case(convolution: nn.Conv2d, shape: tuple[int, ...]) -> tuple[torch.Tensor, ScheduledConv2d]:
    random = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=random), ScheduledConv2d(convolution, 0.0, 0.5)


@pytest.mark.parametrize(("in_channels", "out_channels", "unrolled"), [(32, 16, 1), (23, 21, 2)])
def test_pointwise_equals_torch(call: Call, in_channels: int, out_channels: int, unrolled: int) -> None:
    torch.manual_seed(0)
    maps, scheduled = case(nn.Conv2d(in_channels, out_channels, 1).requires_grad_(False), (2, in_channels, 3, 7))
    found = call(
        "convolution",
        "pointwise",
        maps,
        scheduled._weights,
        scheduled._bias,
        low=0.0,
        high=0.5,
        tf32=False,
        pixels=32,
        channels=16,
        depth=16,
        unrolled=unrolled,
        warps=4,
    )
    torch.testing.assert_close(found, scheduled(maps), atol=1e-5, rtol=1e-5)
    assert 0 < found.mean() < 0.5


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "unrolled"), [(3, 1, 1, True), (3, 2, 1, False), (5, 2, 0, True)]
)
def test_depthwise_equals_torch(call: Call, kernel: int, stride: int, padding: int, unrolled: bool) -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(20, 20, kernel, stride, padding, groups=20, bias=unrolled).requires_grad_(False)
    maps, scheduled = case(convolution, (2, 20, 7, 9))
    found = call(
        "convolution",
        "depthwise",
        maps,
        scheduled._weights,
        scheduled._bias,
        low=0.0,
        high=0.5,
        kernel=kernel,
        stride=stride,
        padding=padding,
        rows=2,
        columns=4,
        channels=16,
        unrolled=unrolled,
        warps=4,
    )
    torch.testing.assert_close(found, scheduled(maps), atol=1e-5, rtol=1e-5)
    assert 0 < found.mean() < 0.5


def test_nan_stays_nan(call: Call) -> None:
    maps = torch.full((1, 16, 2, 2), torch.nan).contiguous(memory_format=torch.channels_last)
    found = call(
        "convolution",
        "pointwise",
        maps,
        torch.ones(16, 16),
        torch.zeros(16),
        low=0.0,
        high=6.0,
        tf32=False,
        pixels=16,
        channels=16,
        depth=16,
        unrolled=1,
        warps=4,
    )
    assert found.isnan().all()


def test_schedules_fit_their_templates() -> None:
    for name in ("pixels", "channels", "depth"):
        assert all(value >= 16 and value.bit_count() == 1 for value in SPACES[POINTWISE].knobs[name])
    for name in ("rows", "columns", "channels"):
        assert all(value.bit_count() == 1 for value in SPACES[DEPTHWISE].knobs[name])


@pytest.mark.parametrize(
    ("convolution", "template"),
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
def test_which_convolutions_have_a_template(convolution: nn.Module, template: ConvolutionTemplate | None) -> None:
    assert template_of(convolution) is template


def test_a_scheduled_network_keeps_its_results() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 1),
        nn.ReLU6(),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.SiLU(),
        nn.Conv2d(8, 4, 1),
        nn.SiLU(),
    ).requires_grad_(False)
    graph, images = fx.symbolic_trace(net), torch.randn(1, 3, 12, 12)
    schedule_convolutions(graph)
    torch.testing.assert_close(
        graph(images), net(images), atol=1e-5, rtol=1e-5
    )  # by other kernels, which sum in another order
    assert sum(isinstance(each, ScheduledConv2d) for each in graph.modules()) == 3
    assert limits_of(nn.ReLU6()) == (0, 6)
    assert limits_of(nn.ReLU()) == (0, INF)
    assert limits_of(nn.SiLU()) is None


class SimulatedKernel:
    """A kernel that records its schedules; schedules with 128 channels fail."""

    def __init__(self) -> None:
        self.tried: list[Config] = []

    def __call__(self, schedule: Config) -> None:
        if not self.tried or self.tried[-1] != schedule:
            self.tried.append(schedule)
        if schedule["channels"] == 128:
            raise RuntimeError("out of shared memory")


def test_schedules_are_searched_once_and_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache: dict[Any, Any] = {}
    monkeypatch.setattr(module, "_cache", cache)
    database, kernel, values = Database(tmp_path / "tuning.jsonl"), SimulatedKernel(), torch.zeros(1)
    best = best_schedule(POINTWISE, values, [50, 3], run=kernel, rule=no_rule, database=database)
    assert len(kernel.tried) == MAX_TRIALS
    assert best in kernel.tried
    assert best["channels"] != 128
    assert best_schedule(POINTWISE, values, [60, 4], run=kernel, rule=no_rule, database=database) == best, (
        "the sizes round up to the same powers of two"
    )
    cache.clear()
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
    monkeypatch.setattr(module, "_cache", {})
    monkeypatch.setattr(module, "_budget", module._SearchBudget())
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
    module.search_without_limit()
    assert module.has_search_time()


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
    module._cache.clear()
    best = best_schedule(POINTWISE, values, [50, 3], run=(again := SimulatedKernel()), rule=rule, database=database)
    assert {schedule["warps"] for schedule in again.tried} == {best["warps"]} == {4}
