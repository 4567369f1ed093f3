"""The process that inspects model files. It imports what inspections need once, and forks itself for each model.

``ChildProcess`` starts this process. The process ends when its standard input is closed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from split_infer_ros.models.user_names import PROGRAM_SUFFIX
from split_infer_ros.runtime.child_loop import serve
from split_infer_ros.runtime.child_process import describe_status, read_line
from split_infer_ros.split.sandbox.inspection_imports import ENGINES, READERS, modules_for, preload
from split_infer_ros.split.sandbox.inspection_limits import BYTES_PER_BYTE

PROGRAMS = ("torch._dynamo", "torch.export", "torchvision")  # for programs of torch.export and their operators
PRELOADED = (*READERS, "onnx.reference.ops._op_list", "numpy.random", *ENGINES)
MAX_IDLE_S = 60.0  # the longest wait of a ready process for its first request; it may have been started for nothing
NUM_THREADS = 2  # for an engine that runs a file


def _prepare(_: Sequence[str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Imports what inspections need, and returns what inspects files."""
    from split_infer_ros.engines.compiled_blobs import CompiledBlob
    from split_infer_ros.runtime.num_threads import use_one_thread

    importlib.import_module("split_infer_ros.split.sandbox.inspected_model")
    use_one_thread()
    CompiledBlob.are_kept = False  # a node could not use them: it has other batch sizes and numbers of threads
    preload(PRELOADED)
    return _inspect


def _inspect(request: dict[str, Any]) -> dict[str, Any]:
    """Inspects files in a forked process, which is killed after ``request['seconds']``."""
    preload(modules_for(request["spec"]))
    preload(PROGRAMS if request["spec"]["name"].endswith(PROGRAM_SUFFIX) else ())
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        os.write(write_end, json.dumps(_answer(request)).encode())
        os._exit(0)
    os.close(write_end)
    found: dict[str, Any] | None = None
    try:
        if text := read_line(read_end, request["seconds"]):
            found = json.loads(text)
    except TimeoutError:
        os.kill(child, signal.SIGKILL)
        found = {"late": True}
    os.close(read_end)
    _, status, usage = os.wait4(child, 0)
    if found is None:
        found = {"died": describe_status(os.waitstatus_to_exitcode(status))}
    return found | {"peak_bytes": 1024 * usage.ru_maxrss}


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """Inspects files in this process, whose memory is limited."""
    from split_infer_ros.runtime.num_threads import use_engine_threads
    from split_infer_ros.split.sandbox.inspected_model import (
        describe_objection,
        files_beside,
        inspect_model,
        parse_spec,
    )

    use_engine_threads(NUM_THREADS)
    spec = parse_spec(request["spec"])
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out after all, this process goes first
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _limit_memory(request["memory_bytes"])
        beside = files_beside(spec)
        _limit_memory(request["memory_bytes"] + BYTES_PER_BYTE * sum(beside.values()))
        return {"files": list(map(str, beside)), "reading": inspect_model(spec)}
    except Exception as error:
        return describe_objection(spec, error)


def _limit_memory(nbytes: int) -> None:
    """Allows this process ``nbytes`` of memory in addition to what it has."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + nbytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))


if __name__ == "__main__":
    sys.exit(serve(_prepare, MAX_IDLE_S))
