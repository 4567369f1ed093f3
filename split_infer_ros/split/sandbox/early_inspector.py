"""Starts the process that inspects model files early, while the calling process still imports what it needs.

This module imports nothing that takes long.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from split_infer_ros.runtime.cache import cache_folder
from split_infer_ros.runtime.child_process import ChildProcess
from split_infer_ros.runtime.files import content_digest
from split_infer_ros.runtime.python_child import python_command
from split_infer_ros.runtime.user_files import is_regular, read_regular, user_path

PROGRAM = "split_infer_ros.split.sandbox.inspector"
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # no threads: it forks
PARAMETERS = "--params-file"
MAX_PARAMETERS_BYTES = 2**16
MAX_START_S = 120.0
MAX_AGE_S = 30.0  # of a process that got no request. It ends by itself a while later.

_MODEL = re.compile(r"[^\s:='\"]+\.onnx(?![^\s'\"])", re.IGNORECASE)

_early: list[tuple[float, ChildProcess]] = []  # the process that was started early, and when; none, or one


def start_early(arguments: Sequence[str]) -> None:
    """Starts the inspecting process if this program's arguments name an ONNX file that was not inspected before.

    Errors are ignored, because ``take_process`` starts a process if there is none.

    Args:
        arguments: the arguments of an executable. Files of ROS parameters that they name are searched too.
    """
    with suppress(Exception):
        paths = [path for text in _texts(arguments) for path in map(user_path, _MODEL.findall(text))]
        if not all(map(was_inspected, filter(is_regular, paths))):
            _early.append((time.monotonic(), start_process()))


def start_process() -> ChildProcess:
    """Starts a process that inspects files. It reports when it is ready, and takes requests even before.

    Raises:
        ChildError: the process cannot be started.
    """
    process = ChildProcess(python_command(PROGRAM), environment=ENVIRONMENT, max_start_s=MAX_START_S)
    process.start()
    return process


def take_process() -> ChildProcess:
    """Returns the process that was started early, or one that is started now. The caller must end it.

    Raises:
        ChildError: no process can be started.
    """
    while _early:
        begin, process = _early.pop()
        if process.is_running and time.monotonic() - begin < MAX_AGE_S:
            return process
        process.end()
    return start_process()


def was_inspected(path: Path) -> bool:
    """Returns whether a file's content was ever inspected, even with other versions of libraries."""
    return any((cache_folder() / "inspected").glob(f"{file_digits(path)}.*"))


def file_digits(path: Path) -> str:
    """Returns hexadecimal digits that identify a file's content. Names of cached files about it begin with them."""
    return content_digest(path)[:32]


def _texts(arguments: Sequence[str]) -> Iterator[str]:
    """Yields the arguments, and the text of the parameter files that they name."""
    yield from arguments
    for option, value in itertools.pairwise(arguments):
        if option == PARAMETERS:
            yield read_regular(Path(value), MAX_PARAMETERS_BYTES).decode(errors="replace")
