"""Keeps exported networks in the user's cache: the graph in one file, and the weights in another.

Engines map the file of weights into memory. So a network of 500 MB is not read, parsed and copied for each of its
sessions.
"""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from split_infer_ros.onnx_graphs.graph import OnnxGraph
from split_infer_ros.runtime.cache import cache_folder, hold
from split_infer_ros.runtime.cache_pruning import write_cached
from split_infer_ros.runtime.files import content_digest

INTACT = ".sha256"  # of the file that holds the digest of what was written

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredExport:
    """An exported network, and which comparisons it has passed.

    Attributes:
        graph: the network. Its weights are in a file, unless nothing could be written.
        path: of the graph's file.
        digest: of both files; empty if nothing could be written.
    """

    graph: OnnxGraph
    path: Path
    digest: str

    def has_passed(self, comparison: str) -> bool:
        """Returns whether exactly this content passed a comparison before."""
        return bool(self.digest) and _read(self._passed(comparison)) == self.digest.encode()

    def note_passed(self, comparison: str) -> None:
        """Notes that this content passed a comparison."""
        if self.digest:
            _write(self._passed(comparison), self.digest)

    def _passed(self, comparison: str) -> Path:
        return self.path.with_suffix(f".{comparison}.agreed")


def path_of(key: str) -> Path:
    """Returns where an export is kept.

    Args:
        key: identifies it.
    """
    return cache_folder() / "onnx" / f"{key}.onnx"


def load(path: Path, name: str) -> StoredExport | None:
    """Returns a stored export; None if there is none, or if a file is not as it was written.

    Args:
        path: as ``path_of`` gives it.
        name: of the network, for messages.
    """
    hold(path)
    try:
        digest = _digest(path)
    except OSError:
        return None
    if _read(path.with_suffix(INTACT)) != digest.encode():
        return None
    import onnx

    return StoredExport(OnnxGraph(name, onnx.load_model(path, load_external_data=False), path), path, digest)


def store(path: Path, name: str, program: Any) -> StoredExport:
    """Stores an export. Other processes may do the same at the same time.

    The log says so if it cannot be written. The export is then in memory alone.

    Args:
        path: as ``path_of`` gives it.
        name: of the network, for messages.
        program: a ``torch.onnx.ONNXProgram``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=path.stem) as folder:
            program.save(Path(folder, path.name), external_data=True)
            for new in sorted(Path(folder).iterdir(), reverse=True):  # the weights first
                new.replace(path.parent / new.name)
        write_cached(path.with_suffix(INTACT), _digest(path).encode())
    except OSError as error:
        _log.warning("%s cannot be kept, so the network is exported again at each start: %s.", path, error)
        stored = None
    else:
        stored = load(path, name)
    return stored or StoredExport(OnnxGraph(name, program.model_proto), path, "")


def _digest(path: Path) -> str:
    """Returns the digests of both files, or of the graph's if a network has no weights.

    Raises:
        OSError: a file cannot be read.
    """
    weights = path.with_name(f"{path.name}.data")  # torch names it
    return " ".join(map(content_digest, (path, weights) if weights.exists() else (path,)))


def _read(path: Path) -> bytes:
    """Returns the content of a file; nothing if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _write(path: Path, text: str) -> None:
    try:
        write_cached(path, text.encode())
    except OSError as error:
        _log.warning("%s cannot be kept, so the engines are compared again at each start: %s.", path, error)
