"""Keeps exported networks in the user's cache: the graph in one file, and the weights in another.

Engines map the file of weights into memory. A network of 500 MB therefore need not be read, parsed and copied for each
of its sessions.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.runtime.cache import cache_folder, hold, warn_if_not_kept
from split_infer_ros.runtime.cached_json import read_json, write_json
from split_infer_ros.runtime.files import content_digest

INTACT = ".sha256"  # suffix of the file with the digest of the written files


@dataclass(frozen=True, slots=True)
class StoredExport:
    """An exported network. It remembers in which comparisons with torch an engine gave the same results.

    Attributes:
        graph: the network. Its weights are in a file, unless no file could be written.
        path: path of the graph's file.
        digest: digest of both files; empty if no file could be written.
    """

    graph: OnnxGraph
    path: Path
    digest: str

    def has_passed(self, comparison: str) -> bool:
        """Returns whether exactly this network, with these weights, passed a comparison before.

        Args:
            comparison: names the engine, its version and provider, and the precision; see ``exported_part``.
        """
        return bool(self.digest) and read_json(self._passed(comparison)) == self.digest

    def note_passed(self, comparison: str) -> None:
        """Notes that this network passed a comparison, for later starts. Does nothing if no file could be written."""
        if self.digest:
            with warn_if_not_kept(self.path, "the engines are compared again at each start"):
                write_json(self._passed(comparison), self.digest)

    def _passed(self, comparison: str) -> Path:
        return self.path.with_suffix(f".{comparison}.agreed")


def path_of(key: str) -> Path:
    """Returns the path of an export's graph in the cache.

    Args:
        key: identifies the export; see ``export_key``.
    """
    return cache_folder() / "onnx" / f"{key}.onnx"


def load(path: Path, name: str) -> StoredExport | None:
    """Returns a stored export; None if there is none, or if a file has changed since it was written.

    Args:
        path: path of the graph's file, from ``path_of``.
        name: the network's name, for messages.
    """
    hold(path)
    try:
        digest = _digest(path)
    except OSError:
        return None
    if read_json(path.with_suffix(INTACT)) != digest:
        return None
    import onnx

    return StoredExport(OnnxGraph(name, onnx.load_model(path, load_external_data=False), path), path, digest)


def store(path: Path, name: str, program: Any) -> StoredExport:
    """Stores an export. Other processes may store the same export at the same time.

    If the files cannot be written, the log says so, and the export is only in memory.

    Args:
        path: path of the graph's file, from ``path_of``.
        name: the network's name, for messages.
        program: a ``torch.onnx.ONNXProgram``.
    """
    stored = None
    with warn_if_not_kept(path, "the network is exported again at each start"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=path.stem) as folder:
            program.save(Path(folder, path.name), external_data=True)
            for new in sorted(Path(folder).iterdir(), reverse=True):  # the weights first
                new.replace(path.parent / new.name)
        write_json(path.with_suffix(INTACT), _digest(path))
        stored = load(path, name)
    return stored or StoredExport(OnnxGraph(name, program.model_proto), path, "")


def _digest(path: Path) -> str:
    """Returns the digests of both files, or of the graph's file alone if there is no file of weights.

    Raises:
        OSError: a file cannot be read.
    """
    weights = path.with_name(f"{path.name}.data")  # torch chooses the name
    return " ".join(map(content_digest, (path, weights) if weights.exists() else (path,)))
