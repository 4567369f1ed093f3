"""Schedules of the templates of convolutions. They are searched by measurement, and kept in the tuning database.

This is paper 004, §3.2.3.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from split_infer_ros.measurements.database import Database, best_of
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.runtime.captures import is_recording
from split_infer_ros.runtime.device import Device
from split_infer_ros.search.cost_model import Sample
from split_infer_ros.search.space import Config, Rule, Space
from split_infer_ros.search.strategies import Guided, Random, Tried, relative_costs
from split_infer_ros.vision_ops.implementations import cache_key, record_task, time_calls, warn_of_failure

if TYPE_CHECKING:
    from torch import Tensor


class ConvolutionTemplate(Enum):
    """A kind of convolution for which this package has a kernel. The value names the operator in records."""

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
MAX_TRIALS = 12  # for a kernel at given sizes; a trial compiles, which takes longer than the kernel runs
MAX_TRIALS_WITH_OTHERS = 6  # if at least ``MAX_TRIALS`` trials at other sizes already say what to try
MAX_SAMPLES = 150  # at other sizes; the cost model takes a second and more for several times as many
SEARCH_S = 30.0  # for all searches of a process, because they can delay a node's start
TRIAL_S = 6.0  # the longest that a trial takes: accepted schedules compile within 5 s

_log = logging.getLogger(__name__)
_cache: dict[tuple[object, ...], Config] = {}  # the schedules that this process uses, by ``cache_key``


@dataclass
class _SearchBudget:
    """Time that this process has left for trials, in seconds."""

    left_s: float = SEARCH_S


_budget = _SearchBudget()


def has_search_time() -> bool:
    """Returns whether this process has time for another trial of a schedule.

    Without time, the best measured schedule is used. If none was measured, the schedule is used that should be the best
    according to trials at other sizes. Without such trials, it is the default.
    """
    return _budget.left_s >= TRIAL_S


@contextlib.contextmanager
def search_time() -> Iterator[bool]:
    """Yields what ``has_search_time`` returns, and takes the time of the context from the time that is left."""
    begin = time.monotonic()
    try:
        yield has_search_time()
    finally:
        _budget.left_s -= time.monotonic() - begin


def limit_search(seconds: float) -> None:
    """Sets how many seconds the searches of this process may take from now on, all together.

    Infinity means no limit, for a caller that limits the time by itself.
    """
    _budget.left_s = seconds


def forget_schedules() -> None:
    """Forgets the schedules that this process uses, as if it had just begun. The database and searches choose again."""
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
    also learns from trials of the same template at other sizes. With enough of those, ``MAX_TRIALS_WITH_OTHERS`` trials
    suffice. All searches of a process share ``SEARCH_S``. No trial begins with less than ``TRIAL_S`` of that time left,
    and none is measured beyond its end. Nothing is tried while a CUDA graph is recorded: the default is then returned.

    Args:
        template: the template to search.
        values: the convolution's input; its device and dtype are part of the choice.
        sizes: numbers on which the convolution's time depends.
        run: runs the convolution with a schedule.
        rule: rejects schedules that cannot be launched here, or that take long to compile.
        database: keeps the trials; None for the user's own database.
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
    space: Space, task: Mapping[str, Any], device: Device, *, run: Callable[[Config], object], database: Database
) -> Config:
    """Tries schedules until there are enough or the time is spent.

    Returns:
        The best schedule that was measured. If there is none, the one that is expected to be the best.
    """
    machine = Key.here(str(device))
    records = [record for record in database.find(machine, task) if record.config in space]
    search, num_others = _make_search(space, task, machine, database)
    max_trials = MAX_TRIALS if num_others < MAX_TRIALS else MAX_TRIALS_WITH_OTHERS
    while len(records) < max_trials and has_search_time():
        begin = time.monotonic()
        config = search.propose([Tried(record.config, record.median_s) for record in records])
        if config is None:
            break
        has_time = partial(_is_before, begin + _budget.left_s)
        record = time_calls(machine, task, config, partial(run, config), device=device, may_continue=has_time)
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
    """Returns the search of a task's schedules, and the number of trials at other sizes from which it learns."""
    if importlib.util.find_spec("sklearn") is None:  # without it there is no cost model
        return Random(space), 0
    others = samples_at_other_sizes(database, machine, task, space)
    return Guided(space, features=size_features(task), other_samples=others), len(others)


def _is_before(deadline: float) -> bool:
    return time.monotonic() < deadline


def size_features(task: Mapping[str, Any]) -> dict[str, float]:
    """Returns what the cost model is told of a task: the decimal logarithms of its sizes, by name.

    Logarithms are taken because such numbers should differ by about 1.
    """
    return {f"size {place}": math.log10(max(1, size)) for place, size in enumerate(_sizes(task))}


def samples_at_other_sizes(database: Database, key: Key, task: Mapping[str, Any], space: Space) -> list[Sample]:
    """Returns samples of the same operator and precision at other sizes, from which the cost model learns.

    The samples at the nearest sizes come first. There are at most ``MAX_SAMPLES``.

    Args:
        database: holds the records.
        key: the key of this machine.
        task: the task that is searched now. Its own records are left out.
        space: the schedules of the template. Records of other configurations are left out.
    """
    here = size_features(task)
    by_sizes: dict[tuple[int, ...], list[Record]] = {}
    for record in database.records():
        sizes = _sizes(record.task)
        is_other = _without_sizes(record.task) == _without_sizes(task) and sizes != _sizes(task)
        if is_other and len(sizes) == len(here) and key.fits(record) and record.config in space:
            by_sizes.setdefault(sizes, []).append(record)
    samples = []
    for records in by_sizes.values():
        tried = [Tried(record.config, record.median_s) for record in records if not record.uncertain]
        samples += relative_costs(tried, space.default, size_features(records[0].task))
    samples.sort(key=lambda sample: math.dist(list(sample.features.values()), list(here.values())))
    return samples[:MAX_SAMPLES]


def _sizes(task: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the sizes in a task, or none if the task has something else in their place."""
    shapes = task.get("shapes")
    sizes = shapes[0] if isinstance(shapes, list) and len(shapes) == 1 else None
    if not isinstance(sizes, list) or not all(type(size) is int for size in sizes):
        return ()
    return tuple(sizes)


def _without_sizes(task: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in task.items() if name != "shapes"}
