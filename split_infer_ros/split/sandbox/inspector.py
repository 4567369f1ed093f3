"""The process that inspects model files. It imports what they need once, and forks itself for each file.

Requests are lines of JSON on standard input; answers go to a file descriptor. The process ends with its input.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from split_infer_ros.runtime.child_process import describe_status
from split_infer_ros.split.sandbox.inspection_imports import ENGINES, READERS, modules_for, preload
from split_infer_ros.split.sandbox.inspection_limits import BYTES_PER_BYTE

PROGRAMS = ("torch._dynamo", "torch.export", "torchvision")  # for programs of torch.export and their operators
PRELOADED = (*READERS, "onnx.reference.ops._op_list", "numpy.random", *ENGINES)
MAX_IDLE_S = 60.0  # the longest wait of a ready process for its first request; it may have been started for nothing
NUM_THREADS = 2  # for an engine that runs a file


def main() -> int:
    """Serves until there are no more requests. The argument is the answers' file descriptor."""
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    try:
        from split_infer_ros.engines.compiled_blobs import CompiledBlob
        from split_infer_ros.models.user_names import PROGRAM_SUFFIX
        from split_infer_ros.runtime.num_threads import use_one_thread

        importlib.import_module("split_infer_ros.split.sandbox.inspected_model")
        use_one_thread()
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers)
        return 1
    CompiledBlob.are_kept = False  # a node could not use them: it has other batch sizes and numbers of threads
    preload(PRELOADED)
    print(json.dumps({"ready": True}), file=answers)
    if not select.select([sys.stdin], [], [], MAX_IDLE_S)[0]:
        return 0
    for line in sys.stdin:
        request = json.loads(line)
        preload(modules_for(request["spec"]))
        preload(PROGRAMS if request["spec"]["name"].endswith(PROGRAM_SUFFIX) else ())
        print(json.dumps(_inspect_in_fork(request)), file=answers)
    return 0


def _inspect_in_fork(request: dict[str, Any]) -> dict[str, Any]:
    """Inspects files in a forked process, which is killed after ``request['seconds']``."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        os.write(write_end, json.dumps(_answer(request)).encode())
        os._exit(0)
    os.close(write_end)
    text, late = _read_until(read_end, time.monotonic() + request["seconds"])
    os.close(read_end)
    if late:
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    found: dict[str, Any]
    if late:
        found = {"late": True}
    elif text:
        found = json.loads(text)
    else:
        found = {"died": describe_status(os.waitstatus_to_exitcode(status))}
    return found | {"peak_bytes": 1024 * usage.ru_maxrss}


def _read_until(descriptor: int, end: float) -> tuple[bytes, bool]:
    """Returns what was written until the other end was closed, and whether that took too long."""
    text = b""
    while True:
        left_s = end - time.monotonic()
        if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
            return text, True
        more = os.read(descriptor, 65536)
        if not more:
            return text, False
        text += more


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
    sys.exit(main())
