"""Schedules of a kernel's template, searched by measurement (§3.2.3) and kept in the tuning database."""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from split_infer_ros.measurements.database import Database, best_of
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.runtime.captures import is_recording
from split_infer_ros.runtime.device import Device
from split_infer_ros.search.space import Config, Rule, Space
from split_infer_ros.search.strategies import Guided, Random, Tried
from split_infer_ros.vision_ops.implementations import cache_key, record_task, time_calls, warn_of_failure
from split_infer_ros.vision_ops.other_sizes import samples_at_other_sizes, size_features

if TYPE_CHECKING:
    from torch import Tensor


class ConvolutionTemplate(Enum):
    """A convolution for which there is a template. Its value names the operator in records."""

    POINTWISE = "pointwise"  # 1x1, of stride 1
    DEPTHWISE = "depthwise"  # each channel by itself
    WINDOWED = "windowed"  # any other square window: dense, strided or in groups of channels


_TILES = {
    "pixels": (64, 16, 32, 128),
    "channels": (64, 16, 32, 128),
    "depth": (32, 16, 64),
    "unrolled": (1, 2, 4),
    "warps": (4, 2, 8),
}
SPACES = {
    ConvolutionTemplate.POINTWISE: Space(_TILES),
    ConvolutionTemplate.WINDOWED: Space(_TILES),
    ConvolutionTemplate.DEPTHWISE: Space(
        {
            "rows": (2, 1, 4, 8),
            "columns": (8, 4, 16),
            "channels": (32, 16, 64),
            "unrolled": (True, False),
            "warps": (4, 1, 2, 8),
        }
    ),
}
MAX_TRIALS = 12  # of a kernel at given sizes; a trial compiles, which takes longer than the kernel runs
MAX_TRIALS_WITH_OTHERS = 6  # if as many trials at other sizes as ``MAX_TRIALS`` already say what to try
SEARCH_S = 30.0  # for all searches of a process, by which they can delay a node's start
TRIAL_S = 6.0  # that a trial takes at most: accepted schedules compile within 5 s

_log = logging.getLogger(__name__)
_cache: dict[tuple[object, ...], Config] = {}  # of this process, by ``cache_key``


@dataclass
class _SearchBudget:
    """Time that this process has left for trials, in seconds."""

    left_s: float = SEARCH_S


_budget = _SearchBudget()


def has_search_time() -> bool:
    """Whether this process has time for another trial.

    Without it, a schedule is the best of those that were measured. If none was, it is the one that trials at other
    sizes let expect to be the best, or the default.
    """
    return _budget.left_s >= TRIAL_S


def limit_search(seconds: float) -> None:
    """Sets how long the searches of this process may take from now on; infinity where somebody else limits them."""
    _budget.left_s = seconds


def forget_schedules() -> None:
    """Forgets the schedules that this process found, as if it began: the database and searches choose again."""
    _cache.clear()


def best_schedule(
    template: ConvolutionTemplate,
    values: Tensor,
    sizes: Sequence[int],
    *,
    run: Callable[[Config], object],
    rule: Rule,
    database: Database | None = None,
) -> Config:
    """Returns the fastest measured schedule of a template at these sizes, rounded up to the next power of two.

    If fewer than ``MAX_TRIALS`` schedules were measured, more are tried, guided by a model of their costs. The model
    also learns from trials of the same template at other sizes. With enough of those, ``MAX_TRIALS_WITH_OTHERS`` will
    do. All searches of a process share ``SEARCH_S``. No trial begins with less than ``TRIAL_S`` of it left, and none is
    measured beyond its end. Nothing is tried while a CUDA graph is recorded.

    Args:
        template: whose schedules are searched.
        values: the convolution's input; its device and dtype are part of the choice.
        sizes: numbers on which the convolution's time depends.
        run: runs the convolution with a schedule.
        rule: rejects schedules that cannot be launched here, or that take long to compile.
        database: None for the user's own.
    """
    key = cache_key(template.value, values, sizes)
    if key in _cache:
        return _cache[key]
    device = Device.of(values)
    if is_recording(device):
        return SPACES[template].default
    space = replace(SPACES[template], rule=rule)
    task = record_task(f"{template.value} schedule", values, sizes)
    _cache[key] = _search(space, task, device, run=run, database=database or Database())
    return _cache[key]


def _search(
    space: Space,
    task: Mapping[str, Any],
    device: Device,
    *,
    run: Callable[[Config], object],
    database: Database,
) -> Config:
    """Tries schedules until there are enough or the time is spent; returns the best, or the one expected to be."""
    machine = Key.here(str(device))
    records = [record for record in database.find(machine, task) if record.config in space]
    search, num_others = _make_search(space, task, machine, database)
    max_trials = MAX_TRIALS if num_others < MAX_TRIALS else MAX_TRIALS_WITH_OTHERS
    while len(records) < max_trials and has_search_time():
        begin = time.monotonic()
        config = search.propose([Tried(record.config, record.median_s) for record in records])
        if config is None:
            break
        record = _try(config, machine, task, device=device, run=run, deadline=begin + _budget.left_s)
        warn_of_failure(record)
        database.keep([record], "the schedule is")
        records.append(record)
        _budget.left_s -= time.monotonic() - begin
        if not has_search_time():
            _log.warning("No more schedules are searched for after %g s: `tune` finds the rest.", SEARCH_S)
    best = best_of(records)
    return search.expected_best() if best is None else best.config


def _make_search(
    space: Space, task: Mapping[str, Any], machine: Key, database: Database
) -> tuple[Guided | Random, int]:
    """Returns the search of a task's schedules, and from how many trials at other sizes it learns."""
    if importlib.util.find_spec("sklearn") is None:  # without it there is no cost model
        return Random(space), 0
    others = samples_at_other_sizes(database, machine, task, space)
    return Guided(space, features=size_features(task), other_samples=others), len(others)


def _try(
    config: Config,
    machine: Key,
    task: Mapping[str, Any],
    *,
    device: Device,
    run: Callable[[Config], object],
    deadline: float,
) -> Record:
    """Measures one schedule; no further group of calls begins after ``deadline``, a time of the monotonic clock."""
    return time_calls(
        machine,
        task,
        config,
        lambda: run(config),
        device=device,
        may_continue=lambda: time.monotonic() < deadline,
    )
