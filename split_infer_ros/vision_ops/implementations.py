"""Chooses among several implementations of an operator by measurement. The tuning database keeps the measurements.

Records of the database name an implementation under the key ``form``.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from split_infer_ros.measurements.database import Database, best_of
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.measurements.steady import Measured, measure_steadily
from split_infer_ros.runtime.captures import is_recording, synchronize_device
from split_infer_ros.runtime.device import Device
from split_infer_ros.search.space import describe_config

if TYPE_CHECKING:  # operators choose among implementations only on a GPU
    from torch import Tensor


class ImplementationChoice(Enum):
    """Which implementation of an operator runs on a GPU. Its value is what parameters and records say."""

    MEASURED = "measured"  # whichever was measured to be the fastest
    PLAIN = "plain"  # torch's own operators, which run on any device
    TRITON = "triton"  # a Triton kernel of this package
    FALLBACK = "fallback"  # the measured one, and operators that perform badly on a GPU run on the CPU


CALLS_PER_GROUP = 4  # see measure_steadily

T = TypeVar("T")
Size = int | str  # a number, which is rounded, or a text, which is not
SearchTime = Callable[[], contextlib.AbstractContextManager[bool]]

_log = logging.getLogger(__name__)
_forced: ContextVar[ImplementationChoice] = ContextVar("forced", default=ImplementationChoice.MEASURED)
_cache: dict[tuple[object, ...], ImplementationChoice] = {}  # the choices of this process, by ``cache_key``
_warned: set[tuple[str, str, str]] = set()  # operators, configurations and errors of which this process has warned


def run_fastest(
    operator: str,
    values: Tensor,
    sizes: Sequence[Size],
    implementations: Mapping[ImplementationChoice, Callable[[], T]],
    *,
    database: Database | None = None,
    may_keep: Callable[[], bool] = lambda: True,
    search_time: SearchTime = lambda: contextlib.nullcontext(True),
) -> T:
    """Runs the fastest implementation of an operator and returns its result. All implementations give the same result.

    If ``use_implementation`` names one of the implementations, that one runs. Otherwise all of them are run and timed,
    once for sizes that round up to the same powers of two. Times that the database has are used instead, unless they
    are marked uncertain. An implementation that fails, or whose times are uncertain, is not used. Each process warns
    once of a failure and its error, also if it knows the failure only from the database.

    Nothing is timed while a CUDA graph is recorded: the graph then takes ``PLAIN``.

    Args:
        operator: the operator's name in records.
        values: the operator's input; its device and dtype are part of the choice.
        sizes: numbers on which the operator's time depends. A size that is a text is not rounded.
        implementations: functions that run the operator, ``PLAIN`` among them.
        database: keeps the times; None for the user's own database.
        may_keep: called after the implementations were timed. It returns whether other processes would measure the
            same. If so, the database keeps the times. If not, only this process uses them.
        search_time: a context in which implementations are timed. It tells whether there is time for that. If not, and
            the database lacks times, this process takes ``PLAIN``.
    """
    forced = _forced.get()
    if forced in implementations:
        return implementations[forced]()
    key = cache_key(operator, values, sizes)
    if key not in _cache:
        device = Device.of(values)
        if is_recording(device):
            return implementations[ImplementationChoice.PLAIN]()
        task = record_task(operator, values, sizes)
        _cache[key] = _choose(task, device, implementations, database or Database(), may_keep, search_time)
    return implementations[_cache[key]]()


def forget_choices() -> None:
    """Forgets the choices and the warnings of this process, as if it had just begun.

    The database and new measurements then choose again.
    """
    _cache.clear()
    _warned.clear()


@contextlib.contextmanager
def use_implementation(choice: ImplementationChoice) -> Iterator[None]:
    """Makes operators on this thread use an implementation, if they have it, until the context ends.

    Operators that do not have it choose as usual.
    """
    token = _forced.set(choice)
    try:
        yield
    finally:
        _forced.reset(token)


def cache_key(operator: str, values: Tensor, sizes: Sequence[Size]) -> tuple[object, ...]:
    """Returns the key under which a process caches what is fastest: operator, device, dtype and rounded sizes."""
    return (operator, values.device, values.dtype, *_rounded(sizes))


def record_task(operator: str, values: Tensor, sizes: Sequence[Size]) -> dict[str, Any]:
    """Returns the task under which the database keeps an operator's times; sizes are rounded as in ``cache_key``."""
    precision = str(values.dtype).removeprefix("torch.")
    return {"operator": operator, "shapes": [_rounded(sizes)], "precision": precision}


def _rounded(sizes: Sequence[Size]) -> list[Size]:
    """Rounds sizes up to the next power of two; 0 and texts stay as they are."""
    return [1 << (size - 1).bit_length() if isinstance(size, int) and size else size for size in sizes]


def _choose(
    task: Mapping[str, Any],
    device: Device,
    implementations: Mapping[ImplementationChoice, Callable[[], object]],
    database: Database,
    may_keep: Callable[[], bool],
    search_time: SearchTime,
) -> ImplementationChoice:
    """Returns the fastest implementation, after measuring all of them if the records leave one uncertain.

    If the records do, and there is no time for measuring, the result is ``PLAIN``.
    """
    machine = Key.here(str(device))
    by_name = {choice.value: choice for choice in implementations}
    records = [record for record in database.find(machine, task) if record.config.get("form") in by_name]
    if {record.config["form"] for record in records if not record.uncertain} != set(by_name):
        with search_time() as has_time:
            if not has_time:
                return ImplementationChoice.PLAIN
            measured = [
                time_calls(machine, task, {"form": choice.value}, run, device=device)
                for choice, run in implementations.items()
            ]
        if may_keep():
            database.keep(measured, "the choice is")
        records += measured
    for record in records:
        warn_of_failure(record)
    best = best_of(records)
    choice = ImplementationChoice.PLAIN if best is None else by_name[best.config["form"]]
    _log.info("%s %s on %s: %s.", task["operator"], task["shapes"], device, choice.value)
    return choice


def time_calls(
    key: Key,
    task: Mapping[str, Any],
    config: Mapping[str, Any],
    run: Callable[[], object],
    *,
    device: Device,
    may_continue: Callable[[], bool] = lambda: True,
) -> Record:
    """Times groups of calls and returns their record, marked uncertain if the groups' medians disagree.

    The first call is not timed. A call that raises gives a record with its error.

    Args:
        key: the machine and its versions.
        task: the task of the record, which says what is measured.
        config: the configuration of the record, which says how the task is done.
        run: the call to time.
        device: the device on which the call works. It is synchronized after each call.
        may_continue: called when medians disagree, before each further group. It returns whether that group may be
            measured.
    """

    def call() -> float:
        begin = time.perf_counter()
        run()
        synchronize_device(device)
        return time.perf_counter() - begin

    measured, failure = Measured((), uncertain=False), None
    try:
        call()
        measured = measure_steadily(lambda: [call() for _ in range(CALLS_PER_GROUP)], may_continue)
    except Exception as error:  # a compiler can raise anything
        failure = f"{type(error).__name__}: {error}"
    return key.record(
        task,
        config,
        measured.costs,
        time=time.time(),
        error=failure,
        facts={"uncertain": True} if measured.uncertain else {},
    )


def warn_of_failure(record: Record) -> None:
    """Warns if a record has an error. A process warns once of each error."""
    if record.error is None:
        return
    failure = str(record.task["operator"]), describe_config(record.config), record.error
    if failure not in _warned:
        _warned.add(failure)
        _log.warning("%s: %s fails (%s) and is not used.", *failure)
