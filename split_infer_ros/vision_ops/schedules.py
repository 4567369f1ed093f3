"""Schedules of a kernel's template, searched by measurement (§3.2.3) and kept in the tuning database."""

from __future__ import annotations

import importlib.util
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from split_infer_ros.measurements.database import Database, best_of
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.search.space import Config, Rule, Space
from split_infer_ros.search.strategies import Guided, Random, Search, Tried
from split_infer_ros.vision_ops.fastest import place_of, task_of, time_form, warn_of_failure

POINTWISE, DEPTHWISE = "pointwise", "depthwise"
SPACES = {
    POINTWISE: Space(
        {
            "pixels": (64, 16, 32, 128),
            "channels": (64, 16, 32, 128),
            "depth": (32, 16, 64),
            "unrolled": (1, 2, 4),
            "warps": (4, 2, 8),
        }
    ),
    DEPTHWISE: Space(
        {
            "rows": (2, 1, 4, 8),
            "columns": (8, 4, 16),
            "channels": (32, 16, 64),
            "unrolled": (True, False),
            "warps": (4, 1, 2, 8),
        }
    ),
}
TRIALS = 12  # of a kernel at some sizes; each is compiled, which takes longer than it runs
SEARCH_S = 30.0  # of a process, for all its searches: so much later may a node start
TRIAL_S = 6.0  # that one takes at most: what the rule admits is compiled in 5 s

_log = logging.getLogger(__name__)
_known: dict[tuple[object, ...], Config] = {}  # of this process, by operator, device, type and size


@dataclass
class _Time:
    left_s: float = SEARCH_S


_time = _Time()


def may_search() -> bool:
    """Whether this process has the time for a trial. Without it, schedules are the best of a few, or the default."""
    return _time.left_s >= TRIAL_S


def search_without_limit() -> None:
    """For a process that has its time from somebody else: as long as trials of schedules take."""
    _time.left_s = math.inf


def best_schedule(
    operator: str,
    values: Tensor,
    sizes: Sequence[int],
    run: Callable[[Config], object],
    rule: Rule,
    database: Database | None = None,
) -> Config:
    """The fastest schedule of those that were tried, at sizes to the next power of two.

    Where fewer than ``TRIALS`` are known, more are tried, guided by a model of their costs. All searches of a process
    together take at most ``SEARCH_S``: no trial begins with less than ``TRIAL_S`` left, and none is measured beyond
    that. None is tried while a CUDA graph is recorded.

    Args:
        operator: ``pointwise`` or ``depthwise``.
        values: what it works on, whose device and type count.
        sizes: what its time depends on.
        run: with that schedule.
        rule: leaves out schedules that cannot be launched here, or take long to compile.
        database: the user's own if None.
    """
    place = place_of(operator, values, sizes)
    if place in _known:
        return _known[place]
    if values.is_cuda and torch.cuda.is_current_stream_capturing():
        return SPACES[operator].default
    space, task = replace(SPACES[operator], rule=rule), task_of(f"{operator} schedule", values, sizes)
    _known[place] = found = _search(space, task, values.device, run, database or Database())
    return found


def _search(
    space: Space,
    task: Mapping[str, Any],
    device: torch.device,
    run: Callable[[Config], object],
    database: Database,
) -> Config:
    key = Key.here(str(device))
    records = [record for record in database.find(key, task) if record.config in space]
    guided = importlib.util.find_spec("sklearn") is not None
    search: Search = Guided(space) if guided else Random(space)
    while len(records) < TRIALS and may_search():
        begin = time.monotonic()
        end = begin + _time.left_s
        config = search.propose([Tried(record.config, record.median_s) for record in records])
        if config is None:
            break
        record = _try(config, key, task, device, run, end)
        warn_of_failure(record)
        database.keep([record], "the schedule is")
        records.append(record)
        _time.left_s -= time.monotonic() - begin
        if not may_search():
            _log.warning("No more schedules are searched for after %g s: `tune` finds the rest.", SEARCH_S)
    best = best_of(records)
    return space.default if best is None else best.config


def _try(
    config: Config,
    key: Key,
    task: Mapping[str, Any],
    device: torch.device,
    run: Callable[[Config], object],
    end: float,
) -> Record:
    """The record of one schedule, which is not measured again once the clock shows ``end``."""
    return time_form(key, task, config, lambda: run(config), device, lambda: time.monotonic() < end)
