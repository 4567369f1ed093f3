"""The form of an operator that is the fastest here: by measurement, kept in the tuning database."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor

from split_infer_ros.measurements.database import Database, best_of
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.measurements.steady import Measured, measure_steadily
from split_infer_ros.runtime.captures import synchronize_device
from split_infer_ros.search.space import describe_config

PLAIN, TRITON = "plain", "triton"
MEASURED = "measured"
CHOICES = (MEASURED, PLAIN, TRITON)  # which form is used; the first: whichever was measured to be the fastest
ROUNDS = 4  # calls of a group; see measure_steadily

T = TypeVar("T")

_log = logging.getLogger(__name__)
_choice: ContextVar[str] = ContextVar("choice", default=MEASURED)
_known: dict[tuple[object, ...], str] = {}  # of this process, by operator, device, type and size
_warned: set[tuple[str, ...]] = set()  # operators, their forms and errors of which this process has warned


def fastest(
    operator: str,
    values: Tensor,
    sizes: Sequence[int],
    forms: Mapping[str, Callable[[], T]],
    database: Database | None = None,
    lasts: Callable[[], bool] = lambda: True,
) -> T:
    """What the fastest form gives. All forms give the same.

    Unless ``choosing`` says which, all forms are run and timed at sizes (to the next power of two) that neither this
    process nor the database knows for certain. A form that fails, or is uncertain, is not used. Each process warns of
    a form that fails, with the error, also where only the database knows it. Nothing is timed while a CUDA graph is
    recorded: that takes the plain form.

    Args:
        operator: its name.
        values: what it works on, whose device and type count.
        sizes: what its time depends on.
        forms: by name, ``PLAIN`` among them, which runs anywhere.
        database: the user's own if None.
        lasts: asked after forms were timed: whether they will be as fast in other processes, so that this is kept.
    """
    wanted = _choice.get()
    if wanted in forms:
        return forms[wanted]()
    place = place_of(operator, values, sizes)
    if place not in _known:
        if values.is_cuda and torch.cuda.is_current_stream_capturing():
            return forms[PLAIN]()
        task = task_of(operator, values, sizes)
        _known[place] = _choose(task, values.device, forms, database or Database(), lasts)
    return forms[_known[place]]()


@contextlib.contextmanager
def choosing(choice: str) -> Iterator[None]:
    """Within it, on this thread, operators that have that form use it; ``CHOICES`` are what it takes."""
    before = _choice.set(choice)
    try:
        yield
    finally:
        _choice.reset(before)


def place_of(operator: str, values: Tensor, sizes: Sequence[int]) -> tuple[object, ...]:
    """All that an operator's time depends on here; sizes to the next power of two."""
    return (operator, values.device, values.dtype, *_rounded(sizes))


def task_of(operator: str, values: Tensor, sizes: Sequence[int]) -> dict[str, Any]:
    """The same as a record's task."""
    precision = str(values.dtype).removeprefix("torch.")
    return {"operator": operator, "shapes": [_rounded(sizes)], "precision": precision}


def _rounded(sizes: Sequence[int]) -> list[int]:
    return [1 << (size - 1).bit_length() if size else 0 for size in sizes]


def _choose(
    task: Mapping[str, Any],
    device: torch.device,
    forms: Mapping[str, Callable[[], object]],
    database: Database,
    lasts: Callable[[], bool],
) -> str:
    key = Key.here(str(device))
    records = [record for record in database.find(key, task) if record.config.get("form") in forms]
    if {record.config["form"] for record in records if not record.uncertain} != set(forms):
        measured = [time_form(key, task, {"form": name}, form, device) for name, form in forms.items()]
        if lasts():
            database.keep(measured, "the choice is")
        records += measured
    for record in records:
        warn_of_failure(record)
    best = best_of(records)
    choice = PLAIN if best is None else str(best.config["form"])
    _log.info("%s %s on %s: %s.", task["operator"], task["shapes"], device, choice)
    return choice


def time_form(
    key: Key,
    task: Mapping[str, Any],
    config: Mapping[str, Any],
    form: Callable[[], object],
    device: torch.device,
    may_go_on: Callable[[], bool] = lambda: True,
) -> Record:
    """The record of groups of calls, marked uncertain if their medians disagree; the first call is not counted.

    ``may_go_on`` is asked before each group that is taken because medians disagree.
    """

    def call() -> float:
        begin = time.perf_counter()
        form()
        synchronize_device(device)
        return time.perf_counter() - begin

    measured, failure = Measured((), uncertain=False), None
    try:
        call()
        measured = measure_steadily(lambda: [call() for _ in range(ROUNDS)], may_go_on)
    except Exception as error:  # whatever a compiler does not bear
        failure = f"{type(error).__name__}: {error}"
    facts = {"uncertain": True} if measured.uncertain else {}
    return Record(key.target, key.versions_for(task), task, config, measured.costs, failure, time.time(), facts=facts)


def warn_of_failure(record: Record) -> None:
    """Say that what a record is of failed, and how: once in a process for each error."""
    if record.error is None:
        return
    found = str(record.task["operator"]), describe_config(record.config), record.error
    if found not in _warned:
        _warned.add(found)
        _log.warning("%s: %s fails (%s) and is not used.", *found)
