"""Finds out from outside which modules a process has imported. Names the modules that no light start may import."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx_files import network, ultralytics

HEAVY = ("torch", "torchvision", "sympy", "sklearn", "scipy", "matplotlib", "onnxscript", "triton", "nncf")
"""Modules that cost seconds or hundreds of megabytes, and that a light start does not need."""

# Python imports it at each start. It writes the names of all modules once a file asks for them.
WATCH = """
import os, sys, threading, time
from pathlib import Path

def watch(folder):
    while not (folder / "look").exists():
        time.sleep(0.02)
    path = folder / f"{{os.getpid()}}.part"
    path.write_text("\\n".join(list(sys.modules)))
    path.rename(folder / str(os.getpid()))

threading.Thread(target=watch, args=(Path({folder!r}),), name="watch", daemon=True).start()
"""


class WatchedModules:
    """Finds out which modules Python processes have imported. They must start with ``PYTHONPATH`` set to ``folder``.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "sitecustomize.py").write_text(WATCH.format(folder=str(folder)))

    def ask(self) -> None:
        """Lets each of the processes write down the modules that it has imported now."""
        (self.folder / "look").touch()

    def begin_again(self) -> None:
        """Lets processes that start from now on wait for another ``ask``."""
        (self.folder / "look").unlink()

    def imported(self, process: int, names: Sequence[str] = HEAVY) -> list[str] | None:
        """Returns which of the modules ``names`` a process has imported; None if the process has not answered yet.

        Call ``ask`` before.
        """
        path = self.folder / str(process)
        if not path.exists():
            return None
        modules = set(path.read_text().split())
        return [name for name in names if name in modules]


def write_detector(path: Path) -> None:
    """Writes a small detector to an ONNX file, with the outputs and the metadata of Ultralytics' exporter."""
    names = dict(enumerate(("cup", "ball", "tree")))
    metadata = ultralytics(imgsz="[32, 32]", names=str(names))
    scale = [32.0, 32.0, 16.0, 16.0, 1.0, 1.0, 1.0]
    onnx.save(network(21, 7, scale=scale, metadata=metadata, transposed=True), path)
