"""Runs in the process of a user's task: makes the task by the user's factory, and runs it on batches of frames."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from split_infer_ros.models.takes import Takes
from split_infer_ros.runtime.child_loop import describe_error, serve
from split_infer_ros.runtime.search_path import search_user_folders
from split_infer_ros.tasks.frame_file import FrameFile


class NotATask(Exception):
    """What the user's factory returned is no task, or what the task returned are no objects."""


def prepare(arguments: Sequence[str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Makes the task ``module:factory``. Returns a function that answers requests about it; see ``UserTask``."""
    path, factory = arguments
    frames = FrameFile.open(path)
    task = _make(factory)
    takes, labels = _facts_of(task)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if "frames" not in request:
            return {"takes": takes.value, "labels": labels}
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
    rows = [np.asarray(each, np.float64).reshape(-1 if np.size(each) else 0, np.shape(each)[-1]) for each in found]
    for each in rows:
        if len(each) and each.shape[1] != length:
            raise NotATask(
                f"run returned rows of {each.shape[1]} numbers, and they must have {length}: a box of "
                f"{takes.box_numbers}, a score and a label"
            )
    return [each.tolist() for each in rows]


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__} {error}")


if __name__ == "__main__":
    sys.exit(serve(prepare))
