"""Schedules of a kernel's template, searched by measurement (§3.2.3) and kept in the tuning database."""

from __future__ import annotations

import importlib.util
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from split_infer_ros.tuning.database import Database, best_of
from split_infer_ros.tuning.key import Key
from split_infer_ros.tuning.search import Guided, Random, Search, Tried
from split_infer_ros.tuning.space import Config, Space
from split_infer_ros.vision_ops.fastest import place_of, task_of, time_form

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

_log = logging.getLogger(__name__)
_known: dict[tuple[object, ...], Config] = {}  # of this process, by operator, device, type and size


@dataclass
class _Time:
    left_s: float = SEARCH_S


_time = _Time()


def may_search() -> bool:
    """False once this process has spent its time: schedules may from then on be the best of a few, or the default."""
    return _time.left_s > 0


def search_without_limit() -> None:
    """For a process that has its time from somebody else: as long as trials of schedules take."""
    _time.left_s = math.inf


def best_schedule(
    operator: str,
    values: Tensor,
    sizes: Sequence[int],
    run: Callable[[Config], object],
    database: Database | None = None,
) -> Config:
    """The fastest schedule of those that were tried, at sizes to the next power of two.

    Where fewer than ``TRIALS`` are known, more are tried, guided by a model of their costs, until this process has
    spent ``SEARCH_S`` on that. None is tried while a CUDA graph is recorded.

    Args:
        operator: ``pointwise`` or ``depthwise``.
        values: what it works on, whose device and type count.
        sizes: what its time depends on.
        run: with that schedule.
        database: the user's own if None.
    """
    place = place_of(operator, values, sizes)
    if place in _known:
        return _known[place]
    if values.is_cuda and torch.cuda.is_current_stream_capturing():
        return SPACES[operator].default
    _known[place] = found = _search(operator, values, sizes, run, database or Database())
    return found


def _search(
    operator: str, values: Tensor, sizes: Sequence[int], run: Callable[[Config], object], database: Database
) -> Config:
    space, key = SPACES[operator], Key.here(str(values.device))
    task = task_of(f"{operator} schedule", values, sizes)
    records = [record for record in database.find(key, task) if record.config in space]
    guided = importlib.util.find_spec("sklearn") is not None
    search: Search = Guided(space) if guided else Random(space)
    while len(records) < TRIALS and may_search():
        begin = time.monotonic()
        config = search.propose([Tried(record.config, record.median_s) for record in records])
        if config is None:
            break
        record = time_form(key, task, config, lambda config=config: run(config), values.device)  # type: ignore[misc]
        database.keep([record], "the schedule is")
        records.append(record)
        _time.left_s -= time.monotonic() - begin
        if not may_search():
            _log.warning("No more schedules are searched for after %g s: `tune` finds the rest.", SEARCH_S)
    best = best_of(records)
    return space.default if best is None else best.config
