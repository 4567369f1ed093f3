"""A process that stands in for a node and gets damaged model files one by one, and the function that drives it.

The process must not die and must not hang. For each file, it tells whether the file was served, or with which sentence
it was refused. Each file has its own seed, so each can be made again alone.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from split_infer_ros.runtime.child_loop import serve
from split_infer_ros.runtime.child_process import ChildProcess

MAX_START_S = 100.0
MAX_S = 60.0  # for one file; what takes longer hangs
INSPECTION_S = "4"


def prepare(arguments: Sequence[str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Runs in the process: returns the function that answers requests. The only argument is a folder for files."""
    folder = Path(arguments[0])
    os.environ |= {"XDG_CACHE_HOME": str(folder / "cache"), "SPLIT_INFER_ROS_INSPECTION_S": INSPECTION_S}
    import torch
    from hostile_files import formats

    from split_infer_ros.split import load
    from split_infer_ros.split.model_spec import ModelSpec
    from split_infer_ros.split.sandbox.inspection import inspect_files
    from split_infer_ros.split.sandbox.inspection_limits import InspectionLimits
    from split_infer_ros.split.sandbox.inspector_process import Inspector

    torch.set_num_threads(1)

    class Watched(Inspector):
        """An inspector that stores its last answer in ``found``."""

        found: ClassVar[dict[str, Any]] = {}

        def ask(self, spec: ModelSpec, limits: InspectionLimits) -> dict[str, Any]:
            Watched.found = super().ask(spec, limits)
            return self.found

    load.inspect_files = partial(inspect_files, inspector=Watched())  # one process for all files
    known = formats(folder)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        name, number = request["file"]
        Watched.found = {}
        answer = _try(known[name], folder, name, number)
        answer |= {"inspection": Watched.found, "ran": (folder / "ran").exists()}
        return answer | {"peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}

    return answer


def _try(known: Any, folder: Path, name: str, number: int) -> dict[str, Any]:
    from hostile_onnx import make_surroundings

    from split_infer_ros.errors import SplitInferError

    rng = random.Random(f"{name} {number}")
    kind = "none" if number < 0 else list(known.damages)[number % len(known.damages)]
    outside = Path(tempfile.mkdtemp(dir=folder))
    place = outside / "models"
    place.mkdir()
    make_surroundings(place, outside)
    path = place / f"model{known.suffix}"
    data = known.whole()
    try:
        path.write_bytes(data if number < 0 else known.damages[kind](rng, data))
    except Exception as error:  # or else a fault of the test would look like a death
        return {"kind": kind, "outcome": "unexpected", "sentence": f"It was not made: {error}"}
    begin = time.monotonic()
    answer: dict[str, Any] = {"kind": kind, "outcome": "served", "sentence": ""}
    try:
        known.serve(path, rng)
    except SplitInferError as error:
        answer |= {"outcome": "sentence", "sentence": str(error).replace(str(place), "")}
    except Exception as error:
        answer |= {"outcome": "unexpected", "sentence": f"{type(error).__name__}: {error}"[:500]}
    answer["seconds"] = time.monotonic() - begin
    shutil.rmtree(outside)
    return answer


def fuzz(files: Iterable[tuple[str, int]], folder: Path) -> Iterator[dict[str, Any]]:
    """Gives damaged files to the process, and yields a result for each file.

    A result has the ``kind`` of damage and the ``outcome``. The file was served, or it was refused with a ``sentence``.
    Or there was an unexpected error, the process died, or it hung.

    Args:
        files: the format and the number of each file. The number is a seed; -1 is a file without damage.
        folder: a folder for files. It may be used again.
    """
    process = ChildProcess((sys.executable, __file__), [str(folder)], max_start_s=MAX_START_S)
    try:
        for name, number in files:
            process.start()
            answer = process.ask({"file": [name, number]}, MAX_S)
            if "late" in answer or "died" in answer:
                outcome = f"death ({answer['died']})" if "died" in answer else "hang"
                answer = {"kind": "", "outcome": outcome, "sentence": "", "inspection": {}, "ran": False}
            yield {"format": name, "number": number, **answer}
    finally:
        process.end()


if __name__ == "__main__":
    sys.exit(serve(prepare))
