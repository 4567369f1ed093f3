"""Which modules a process has imported, seen from outside, and which of them no light start may have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx_files import network, ultralytics

HEAVY = ("torch", "torchvision", "sympy", "sklearn", "scipy", "matplotlib", "onnxscript", "triton", "nncf")
"""What costs seconds or hundreds of megabytes, and no user asked for."""

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
    """The modules of Python processes that start with ``PYTHONPATH`` set to a folder.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "sitecustomize.py").write_text(WATCH.format(folder=str(folder)))

    def ask(self) -> None:
        """Has each of the processes write down its modules now."""
        (self.folder / "look").touch()

    def imported(self, process: int, names: Sequence[str] = HEAVY) -> list[str] | None:
        """Returns which modules of these names a process has imported; None if it has not answered yet."""
        path = self.folder / str(process)
        if not path.exists():
            return None
        modules = set(path.read_text().split())
        return [name for name in names if name in modules]


def write_detector(path: Path) -> None:
    """Writes a small detector with the outputs and the metadata of Ultralytics' exporter."""
    names = dict(enumerate(("cup", "ball", "tree")))
    metadata = ultralytics(imgsz="[32, 32]", names=str(names))
    scale = [32.0, 32.0, 16.0, 16.0, 1.0, 1.0, 1.0]
    onnx.save(network(21, 7, scale=scale, metadata=metadata, transposed=True), path)
