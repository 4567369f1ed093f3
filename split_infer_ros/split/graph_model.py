"""A model that is an ONNX graph: its partitions are cut out of the graph."""

from __future__ import annotations

import hashlib
import itertools
import threading
from functools import cached_property

import numpy as np

from split_infer_ros.buffers.host_arrays import Values
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.executable import make_executable
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.micro_batches import MicroBatchPart
from split_infer_ros.memory_cost.traffic import KernelTraffic
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.onnx_graphs.graph import OnnxGraph
from split_infer_ros.onnx_graphs.nodes import num_elements
from split_infer_ros.onnx_graphs.shapes import without_weights
from split_infer_ros.runtime.device import CPU, Device
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.onnx_batches import PreparedGraph
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.split.split_points import INPUT, OUTPUT, SplitPoint


class GraphModel(SplitModel):
    """What models that are ONNX graphs have in common.

    Args:
        entry: the model's entry.
        prepared: the whole model.
        execution_config: how both partitions run, as far as their device allows.
        split_points: in order. Their positions are those of the graph.

    Attributes:
        prepared: as given.
    """

    def __init__(
        self,
        entry: ModelEntry,
        prepared: PreparedGraph,
        *,
        execution_config: ExecutionConfig,
        split_points: tuple[SplitPoint, ...],
    ) -> None:
        super().__init__(
            entry, CPU, execution_config=execution_config, split_points=split_points, lock=threading.RLock()
        )
        self.prepared = prepared
        self.takes_batches = prepared.graph.inputs[0].shape[0] is None

    @property
    def takes_arrays(self) -> bool:
        """True on a CPU, where the engines that run graphs read and write arrays. On a GPU, torch has the memory."""
        return self.device.type == "cpu"

    def blank_images(self, batch_size: int) -> Values:
        """Returns black images (n, C, H, W) as the backbone takes them."""
        if not self.takes_arrays:
            return super().blank_images(batch_size)
        return np.zeros((batch_size, *self.image_shape), self.dtype)

    @property
    def graph(self) -> OnnxGraph:
        """The whole model, which takes any number of images, or a fixed one. It must not be changed."""
        return self.prepared.graph

    @property
    def content(self) -> str:
        """Identifies the model's operations and weights."""
        return self.graph.digest

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that identify the model's operations, their order and their shapes."""
        skeleton = without_weights(self.prepared.graph.proto, max_elements=0)
        shape = f"{self.entry.image_shape} {self.prepared.graph.inputs[0].shape[0]}"
        return hashlib.sha256(skeleton.SerializeToString(deterministic=True) + shape.encode()).hexdigest()[:12]

    @property
    def parameters(self) -> int:
        """How many parameters the whole model has."""
        return self._parameters_of(0, len(self.prepared.dataflow.nodes))

    def parameters_before(self, name: str) -> int:
        """Returns how many parameters the partition before the split point of that name has."""
        return self._parameters_of(0, self.split_point(name).position)

    def segments(self) -> tuple[tuple[Partition, ...], tuple[Partition, ...]]:
        """Returns the segments between neighbouring split points as the backbone and as the head runs them."""
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
        return (KernelTraffic(),) * sum(index < split_point.position for index in self.prepared.dataflow.computing)

    def _make_backbone(self, split_point: SplitPoint) -> Partition:
        if split_point.name == INPUT:
            return _pass_through
        part = self.prepared.cutter.cut(f"{self.entry.name} up to {split_point.name}", 0, split_point.position)
        is_whole = split_point.name == OUTPUT
        return self._executable(part, self.execution_config, self.device, is_whole=is_whole, gives_results=is_whole)

    def _make_head(self, split_point: SplitPoint) -> Partition:
        if split_point.name == OUTPUT:
            return _pass_through
        end = len(self.prepared.dataflow.nodes)
        part = self.prepared.cutter.cut(f"{self.entry.name} from {split_point.name}", split_point.position, end)
        is_whole = split_point.name == INPUT
        return self._executable(part, self._head_execution_config, CPU, is_whole=is_whole, gives_results=True)

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

    def _parameters_of(self, first: int, last: int) -> int:
        weights = {str(tensor.name): tensor for tensor in self.prepared.graph.proto.graph.initializer}
        used = self.prepared.cutter.weights_of(first, last)
        return sum(num_elements(weights[name]) for name in used)


def _pass_through(*values: Values) -> tuple[Values, ...]:
    """Returns values as they are: the partition on the other side of a model's end has no operations."""
    return values
