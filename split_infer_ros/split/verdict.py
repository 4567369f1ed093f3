"""Remembers what a comparison of an ONNX model's results showed, so that each model is compared once."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from split_infer_ros.engines.engine import engine_text
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.runtime.cache import cache_path, warn_if_not_kept
from split_infer_ros.runtime.cached_json import read_json, write_json
from split_infer_ros.telemetry.machine import engine_version, instruction_set

FOLDER = "onnx"
FORMAT = 4  # of how graphs are changed and compared; a change of that raises it, and graphs are then compared again


@dataclass(frozen=True, slots=True)
class Verdict:
    """Says whether a changed graph gives the same results as before. It is kept in a file of the user's cache.

    Attributes:
        path: the path of the file, which need not exist.
        known: the verdict if the caller knows it already; then the file is not read. None if the caller does not.
    """

    path: Path
    known: bool | None = None

    @classmethod
    def on_batches(cls, graph: OnnxGraph, image_shape: tuple[int, ...], config: ExecutionConfig) -> Verdict:
        """Returns the verdict on a graph's results for several images at once, on one version of an engine.

        Args:
            graph: the graph as its file holds it.
            image_shape: (C, H, W).
            config: names the engine.
        """
        return cls(cache_path(FOLDER, _facts(graph, image_shape, config), ".batches"))

    @classmethod
    def on_torch(cls, graph: OnnxGraph, image_shape: tuple[int, ...], config: ExecutionConfig) -> Verdict:
        """Returns the verdict on a graph that was converted to torch, compared with the graph on another engine.

        It holds for the installed versions of torch, of the converter and of the engine.

        Args:
            graph: the graph as its file holds it.
            image_shape: (C, H, W).
            config: names the other engine.
        """
        import torch  # only here: only models of torch need it

        from split_infer_ros.onnx.conversion.to_torch import LIBRARY

        facts = (torch.__version__, version(LIBRARY), instruction_set())
        return cls(cache_path(FOLDER, " ".join((_facts(graph, image_shape, config), *facts)), ".torch"))

    def read(self) -> bool | None:
        """Returns whether the results are right; None if that is not known."""
        found = read_json(self.path) if self.known is None else self.known
        return found if isinstance(found, bool) else None

    def keep(self, is_right: bool) -> None:
        """Writes the verdict. If it cannot be written, the log says why."""
        with warn_if_not_kept(self.path, "the model is compared again at each start"):
            write_json(self.path, is_right)


def _facts(graph: OnnxGraph, image_shape: tuple[int, ...], config: ExecutionConfig) -> str:
    import onnx

    engine = f"{engine_text(config.engine, config.provider)} {engine_version(config.engine.value)}"
    return f"{FORMAT} {onnx.__version__} {engine} {image_shape} {graph.digest}"
