"""The form of an operator that is the fastest here: by measurement, kept in the tuning database."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from split_infer_ros.tuning.database import Database
from split_infer_ros.tuning.key import Key
from split_infer_ros.tuning.record import Record

PLAIN, TRITON = "plain", "triton"
ROUNDS = 10

T = TypeVar("T")

_log = logging.getLogger(__name__)
_known: dict[tuple[object, ...], str] = {}  # of this process, by operator, device, type and size


def fastest(
    operator: str,
    values: Tensor,
    sizes: Sequence[int],
    forms: Mapping[str, Callable[[], T]],
    database: Database | None = None,
) -> T:
    """What the fastest form gives. All forms give the same.

    At sizes (to the next power of two) that neither this process nor the database knows, all forms are run and timed.
    A form that fails is not used. Nothing is timed while a CUDA graph is recorded: that takes the plain form.

    Args:
        operator: its name.
        values: what it works on, whose device and type count.
        sizes: what its time depends on.
        forms: by name, ``PLAIN`` among them, which runs anywhere.
        database: the user's own if None.
    """
    rounded = [1 << (size - 1).bit_length() if size else 0 for size in sizes]
    place = (operator, values.device, values.dtype, *rounded)
    if place not in _known:
        if values.is_cuda and torch.cuda.is_current_stream_capturing():
            return forms[PLAIN]()
        task = {"operator": operator, "shapes": [rounded], "precision": str(values.dtype).removeprefix("torch.")}
        _known[place] = _choose(task, values.device, forms, database or Database())
    return forms[_known[place]]()


def _choose(
    task: Mapping[str, Any], device: torch.device, forms: Mapping[str, Callable[[], object]], database: Database
) -> str:
    key = Key.here(str(device))
    records = [record for record in database.find(key, task) if record.config.get("form") in forms]
    if {record.config["form"] for record in records} != set(forms):
        records = [_time(key, task, name, form, device) for name, form in forms.items()]
        try:
            database.add(records)
        except OSError as error:
            _log.warning("%s cannot be written (%s): the choice is not kept.", database.path, error)
    best = min(records, key=lambda record: record.median_s)
    _log.info("%s %s on %s: %s.", task["operator"], task["shapes"], device, best.config["form"])
    return PLAIN if best.error else str(best.config["form"])


def _time(key: Key, task: Mapping[str, Any], name: str, form: Callable[[], object], device: torch.device) -> Record:
    costs, failure = [], None
    try:
        for _ in range(1 + ROUNDS):
            begin = time.perf_counter()
            form()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            costs.append(time.perf_counter() - begin)
    except Exception as error:  # whatever a compiler does not bear
        failure = f"{type(error).__name__}: {error}"
        _log.warning("%s: its form %s fails (%s) and is not used.", task["operator"], name, failure)
    return Record(key.target, key.versions, task, {"form": name}, tuple(costs[1:]), failure, time.time())
