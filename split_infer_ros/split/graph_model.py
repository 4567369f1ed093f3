"""A model that is an ONNX graph: its partitions are cut out of the graph."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable

import numpy as np

from split_infer_ros.buffers.host_arrays import Values
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.executable import make_executable
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.micro_batches import MicroBatchPart
from split_infer_ros.memory_cost.traffic import KernelTraffic
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.nodes import num_elements
from split_infer_ros.onnx.prepared_graph import PreparedGraph
from split_infer_ros.onnx.shapes import without_weights
from split_infer_ros.runtime.device import CPU, Device
from split_infer_ros.split.manifest import Manifest
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.split.split_points import INPUT, OUTPUT, SplitPoint

TAKES_BATCHES = "takes batches"  # in the manifest: whether the graph takes any number of images


class GraphModel(SplitModel):
    """The base class of models that are ONNX graphs.

    Args:
        entry: the model's entry.
        prepare: returns the whole model, the same at each call. It is called when a fact is needed that is not known.
        manifest: has the facts that are known.
        execution_config: how both partitions run, as far as their device allows.
        split_points: the split points in order. Their positions are positions in the graph.
    """

    def __init__(
        self,
        entry: ModelEntry,
        prepare: Callable[[], PreparedGraph],
        manifest: Manifest,
        *,
        execution_config: ExecutionConfig,
        split_points: tuple[SplitPoint, ...],
    ) -> None:
        super().__init__(
            entry, CPU, execution_config=execution_config, split_points=split_points, lock=threading.RLock()
        )
        self._prepare, self._manifest = prepare, manifest
        self.takes_batches = manifest.find(TAKES_BATCHES, lambda: self.graph.inputs[0].shape[0] is None)

    @property
    def takes_arrays(self) -> bool:
        """True on a CPU, where the engines that run graphs read and write arrays. On a GPU, torch owns the memory."""
        return self.device.type == "cpu"

    def blank_images(self, batch_size: int) -> Values:
        """Returns black images (n, C, H, W) as the backbone takes them."""
        if not self.takes_arrays:
            return super().blank_images(batch_size)
        return np.zeros((batch_size, *self.image_shape), self.dtype)

    @property
    def prepared(self) -> PreparedGraph:
        """The whole model, prepared for batches."""
        return self._prepare()

    @property
    def graph(self) -> OnnxGraph:
        """The whole model, which takes any number of images, or a fixed one. It must not be changed."""
        return self.prepared.graph

    @property
    def content(self) -> str:
        """Identifies the model's operations and weights."""
        return str(self._manifest.find("content", lambda: self.graph.digest))

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that identify the model's operations, their order and their shapes."""
        return str(self._manifest.find("fingerprint", self._find_fingerprint))

    @property
    def parameters(self) -> int:
        """How many parameters the whole model has."""
        return self._parameters_up_to(None)

    def parameters_before(self, name: str) -> int:
        """Returns how many parameters the partition before the split point of that name has."""
        return self._parameters_up_to(self.split_point(name).position)

    def segments(self) -> tuple[tuple[Partition, ...], tuple[Partition, ...]]:
        """Returns the segments between neighbouring split points, as the backbone runs them and as the head does."""
        cutter = self.prepared.cutter
        pieces = [
            cutter.cut(f"{self.entry.name} from {first.name} to {last.name}", first.position, last.position)
            for first, last in itertools.pairwise(self.split_points)
        ]
        backbones = [self._executable(piece, self.execution_config, self.device) for piece in pieces]
        heads = [self._executable(piece, self._head_execution_config, CPU) for piece in pieces]
        return tuple(backbones), tuple(heads)

    def _find_kernels(self, split_point: SplitPoint) -> tuple[KernelTraffic, ...]:
        """Counts the nodes that compute with images. The engines that run them have memory of their own."""
        position = split_point.position
        count = self._manifest.find(
            f"kernels up to {position}", lambda: sum(index < position for index in self.prepared.dataflow.computing)
        )
        return (KernelTraffic(),) * int(count)

    def _make_backbone(self, split_point: SplitPoint) -> Partition:
        if split_point.name == INPUT:
            return _pass_through
        is_whole = split_point.name == OUTPUT
        name, config = f"{self.entry.name} up to {split_point.name}", self.execution_config
        part = self._part(name, 0, split_point.position)
        return self._executable(part, config, self.device, is_whole=is_whole, gives_results=is_whole)

    def _make_head(self, split_point: SplitPoint) -> Partition:
        if split_point.name == OUTPUT:
            return _pass_through
        name, config = f"{self.entry.name} from {split_point.name}", self._head_execution_config
        part = self._part(name, split_point.position, None)
        return self._executable(part, config, CPU, is_whole=split_point.name == INPUT, gives_results=True)

    def _part(self, name: str, first: int, last: int | None) -> OnnxGraph:
        """Returns the part between two places; ``last`` is None for the graph's end."""

        prepare = self._prepare  # not the model itself: the part keeps what it calls, and the model keeps the part

        def cut() -> OnnxGraph:
            prepared = prepare()
            return prepared.cutter.cut(name, first, len(prepared.dataflow.nodes) if last is None else last)

        key = f"{first}-{'end' if last is None else last}"
        return self._manifest.graph(name, key, cut, keeps_content=True)

    def _executable(
        self,
        part: OnnxGraph,
        config: ExecutionConfig,
        device: Device,
        *,
        is_whole: bool = False,
        gives_results: bool = False,
    ) -> EnginePart:
        executable = make_executable(part, config, device=device, is_whole=is_whole, gives_results=gives_results)
        return executable if self.takes_batches else MicroBatchPart(executable)

    def _find_fingerprint(self) -> str:
        skeleton = without_weights(self.graph.proto, max_elements=0)
        shape = f"{self.entry.image_shape} {self.graph.inputs[0].shape[0]}"
        return hashlib.sha256(skeleton.SerializeToString(deterministic=True) + shape.encode()).hexdigest()[:12]

    def _parameters_up_to(self, last: int | None) -> int:
        """Returns how many parameters lie before a place; None is the graph's end."""

        def count() -> int:
            prepared = self.prepared
            weights = {str(tensor.name): tensor for tensor in prepared.graph.proto.graph.initializer}
            used = prepared.cutter.weights_of(0, len(prepared.dataflow.nodes) if last is None else last)
            return sum(num_elements(weights[name]) for name in used)

        return int(self._manifest.find(f"parameters up to {'end' if last is None else last}", count))


def _pass_through(*values: Values) -> tuple[Values, ...]:
    """Returns values as they are: the partition on the other side of a model's end has no operations."""
    return values
