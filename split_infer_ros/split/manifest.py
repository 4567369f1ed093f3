"""Keeps facts about a user's model, so that a later start reads these in place of the model."""

from __future__ import annotations

import fcntl
import functools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from split_infer_ros.onnx.graph import GraphFacts, OnnxGraph
from split_infer_ros.onnx.model_source import num_weight_bytes
from split_infer_ros.runtime.cache import cache_path, hold, warn_if_not_kept
from split_infer_ros.runtime.cache_pruning import write_cached
from split_infer_ros.runtime.cached_json import read_json, write_json
from split_infer_ros.runtime.checked_files import header_of
from split_infer_ros.runtime.user_files import user_path
from split_infer_ros.telemetry.machine import package_version

FOLDER = "manifests"
FORMAT = 1  # of the facts and of how they are found out; a change of either raises it, and all are found out again
MAX_CONTENT_BYTES = 2**28  # of the weights of a kept graph; writing them takes three times as much memory
_OTHERWISE = "the model is read at each start"
_PACKAGES = ("split_infer_ros", "onnx")


class Manifest:
    """Facts about a model, by name, in a file of the user's cache. Each fact is found out once, and read later.

    A damaged file is treated as missing. Several threads may use a manifest at once, and several processes may have a
    manifest with the same file.

    Args:
        path: the path of the file, which need not exist; None keeps the facts only in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._facts: dict[str, Any] = {} if path is None else read_json(path) or {}

    @classmethod
    def of(cls, identity: str, name: str) -> Manifest:
        """Returns the manifest of an ONNX file.

        Args:
            identity: a text that differs if the file's content differs, or anything else on which the facts depend,
                except versions of packages. If it is empty, facts are kept only in memory.
            name: the name by which the user chose the file. Kept facts contain it in sentences and paths.
        """
        if not identity:
            return cls()
        facts = [FORMAT, *map(package_version, _PACKAGES), identity, name, str(user_path(name).absolute())]
        return cls(cache_path(FOLDER, json.dumps(facts), ".json"))

    def known(self, name: str) -> Any:
        """Returns a fact, or None if it is not known."""
        return self._facts.get(name)

    def keep_no_more(self) -> None:
        """Keeps new facts only in memory from now on, because the next process may find other values for them."""
        self._path = None

    def find(self, name: str, find_out: Callable[[], Any]) -> Any:
        """Returns a fact, and finds it out if it is not known.

        Args:
            name: the name of the fact.
            find_out: is called if the fact is not known, and returns the fact: a value that JSON can hold. If
                ``find_out`` raises an error, the caller gets that error, and nothing is kept.
        """
        if name not in self._facts:
            found = json.loads(json.dumps(find_out()))  # as a later start reads it
            self._facts.setdefault(name, found)
            self._keep()
        return self._facts[name]

    def graph(self, name: str, key: str, make: Callable[[], OnnxGraph], *, keeps_content: bool = False) -> OnnxGraph:
        """Returns a graph that is made only when its nodes are needed.

        Args:
            name: the graph's name, for messages.
            key: the graph's key in this manifest.
            make: makes the graph.
            keeps_content: whether the serialised graph is kept in the cache too. Engines read the graph whenever they
                compile it, and the user may have replaced the model's file by then.
        """
        once = functools.cache(make)
        facts = GraphFacts.of_json(self.find(f"graph {key}", lambda: once().facts.as_json()))
        content = self._content(key, facts.digest, once) if keeps_content and self._path is not None else None
        return OnnxGraph.described(name, facts, once if content is None else make, content)

    def _content(self, key: str, digest: str, make: Callable[[], OnnxGraph]) -> Path | None:
        """Returns the file with the serialised graph, and writes it if it is missing; None if it cannot be kept."""
        if self.find(f"bytes {key}", lambda: num_weight_bytes(make())) >= MAX_CONTENT_BYTES:
            return None
        path = cache_path(FOLDER, json.dumps([FORMAT, digest]), ".onnx")
        with warn_if_not_kept(path, _OTHERWISE):
            if not path.exists():
                content = make().proto.SerializeToString()
                write_cached(path, header_of(content) + content)
            hold(path)
            return path
        self._path = None
        return None

    def _keep(self) -> None:
        path = self._path
        if path is None:
            return
        with warn_if_not_kept(path, _OTHERWISE):
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(path.parent):
                write_json(path, (read_json(path) or {}) | self._facts)  # another process may have written others
            return
        self._path = None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Locks a folder. Other threads and processes that lock it wait."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks: the last one to write wins
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
