"""Runs in the process of a user's task: makes the task by the user's factory, and runs it on batches of frames."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from split_infer_ros.models.takes import Takes
from split_infer_ros.runtime.child_loop import describe_error, serve
from split_infer_ros.runtime.search_path import search_user_folders
from split_infer_ros.tasks.frame_file import FrameFile
from split_infer_ros.tasks.task import MAX_OBJECTS


class NotATask(Exception):
    """What the user's factory returned is no task, or what the task returned are no objects."""


def prepare(arguments: Sequence[str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Makes the task ``module:factory``. Returns a function that answers requests about it; see ``UserTask``."""
    path, factory = arguments
    frames = FrameFile.open(path)
    task = _make(factory)
    takes, labels = _facts_of(task)
    source = _digest_of(factory.partition(":")[0])

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if "frames" not in request:
            return {"takes": takes.value, "labels": labels, "source": source}
        try:
            arrays = frames.read(request["frames"])
            for array in arrays:
                array.flags.writeable = False
            return {"rows": _rows(task.run(arrays), len(arrays), takes)}
        except (Exception, SystemExit) as error:  # the user's code can raise anything
            return {"error": str(error) if isinstance(error, NotATask) else describe_error(_as_exception(error))}

    return answer


def _make(name: str) -> Any:
    module, _, attribute = name.partition(":")
    search_user_folders()
    return getattr(importlib.import_module(module), attribute)()


def _facts_of(task: Any) -> tuple[Takes, list[str]]:
    if not callable(getattr(task, "run", None)):
        raise NotATask(f"the factory returned a {type(task).__name__} without a method run(batch)")
    labels = getattr(task, "labels", None)
    if isinstance(labels, str) or not isinstance(labels, Sequence) or not labels:
        raise NotATask(f"its attribute labels is {labels!r}, and must be a list of at least one name")
    kind, kinds = getattr(task, "takes", Takes.IMAGES.value), [each.value for each in Takes]
    if kind not in kinds:
        raise NotATask(f"its attribute takes is {kind!r}, and must be {' or '.join(map(repr, kinds))}")
    return Takes(kind), [str(label) for label in labels]


def _rows(found: Any, count: int, takes: Takes) -> list[list[list[float]]]:
    """Returns what ``run`` returned as lists of rows, one list for each frame. Each row is a box, a score and a label.

    Raises:
        NotATask: there are not as many lists as frames, or rows of another length.
    """
    if not isinstance(found, Sequence) or len(found) != count:
        size = f" of {len(found)}" if isinstance(found, Sequence) else ""
        raise NotATask(f"run returned a {type(found).__name__}{size}, and must return a list of {count}")
    length = takes.box_numbers + 2
    tables = [np.asarray([] if each is None else each, np.float64) for each in found]
    for each in tables:
        if each.size and (each.ndim != 2 or each.shape[1] != length):
            form = f"rows of {each.shape[1]} numbers" if each.ndim == 2 else f"an array of shape {each.shape}"
            raise NotATask(
                f"run returned {form} for a frame, and must return rows of {length}: a box of {takes.box_numbers} "
                "numbers, a score and a label"
            )
    return [_best(each).tolist() for each in tables]


def _best(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the rows with the best scores, as many as a slot holds. Rows without a number as score stay."""
    if len(rows) <= MAX_OBJECTS:
        return rows
    return rows[np.argsort(-np.nan_to_num(rows[:, -2], nan=np.inf), kind="stable")[:MAX_OBJECTS]]


def _digest_of(module: str) -> str:
    """Returns a digest of a module's file; an empty text if it has none."""
    path = getattr(sys.modules[module], "__file__", None)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12] if path and Path(path).is_file() else ""


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__} {error}")


if __name__ == "__main__":
    sys.exit(serve(prepare))
