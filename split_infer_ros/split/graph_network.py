"""A network that is an ONNX graph: its partitions are cut out of the graph."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable

from split_infer_ros.buffers.host_arrays import Values
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.executable import make_executable
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.micro_batches import MicroBatchPart
from split_infer_ros.memory_cost.traffic import KernelTraffic
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.nodes import num_elements
from split_infer_ros.onnx.parts import without_weights
from split_infer_ros.onnx.prepared_graph import PreparedGraph
from split_infer_ros.runtime.device import CPU, Device
from split_infer_ros.split.manifest import Manifest
from split_infer_ros.split.network import Network
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.split.split_points import INPUT, OUTPUT, SplitPoint

TAKES_BATCHES = "takes batches"  # in the manifest: whether the graph takes any number of images


class GraphNetwork(Network):
    """The base class of networks that are ONNX graphs.

    On a CPU, partitions take and give NumPy arrays. On a GPU, they take and give torch's tensors.

    Args:
        entry: the model's ``ModelEntry``.
        prepare: returns the whole network, the same object at each call. It is called only if the graph's nodes or a
            fact that ``manifest`` lacks are needed.
        manifest: the known facts about the network.
        split_points: the split points in order. Their positions count the graph's nodes.
    """

    takes_arrays = True

    def __init__(
        self,
        entry: ModelEntry,
        prepare: Callable[[], PreparedGraph],
        manifest: Manifest,
        split_points: tuple[SplitPoint, ...],
    ) -> None:
        super().__init__(entry, split_points, threading.RLock())
        self._prepare, self._manifest = prepare, manifest
        self.takes_batches = manifest.find(TAKES_BATCHES, lambda: self.prepared.graph.inputs[0].shape[0] is None)

    @property
    def prepared(self) -> PreparedGraph:
        """The whole network as a prepared graph. It takes any number of images, or a fixed number."""
        return self._prepare()

    @property
    def content(self) -> str:
        """Hexadecimal digits that identify the network's operations and weights."""
        return str(self._manifest.find("content", lambda: self.prepared.graph.digest))

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that identify the operations, their order and their shapes."""
        return str(self._manifest.find("fingerprint", self._find_fingerprint))

    def num_parameters(self, before: str | None = None) -> int:
        """Returns the number of parameters of the network, or only of the backbone for split point ``before``."""
        end = None if before is None else self.split_point(before).position

        def count() -> int:
            prepared = self.prepared
            weights = {str(tensor.name): tensor for tensor in prepared.graph.proto.graph.initializer}
            used = prepared.cutter.weights_of(0, len(prepared.dataflow.nodes) if end is None else end)
            return sum(num_elements(weights[name]) for name in used)

        return int(self._manifest.find(f"parameters up to {'end' if end is None else end}", count))

    def segments(
        self, config: ExecutionConfig, device: Device, *, takes_float32: bool = False
    ) -> tuple[Partition, ...]:
        """Makes the segments between neighbouring split points, in order.

        They take and give the graph's dtypes, whatever ``takes_float32`` says.
        """
        cutter = self.prepared.cutter
        return tuple(
            self._executable(
                cutter.cut(f"{self.entry.name} from {first.name} to {last.name}", first.position, last.position),
                config,
                device,
            )
            for first, last in itertools.pairwise(self.split_points)
        )

    def kernels_before(self, split_point: SplitPoint, config: ExecutionConfig) -> tuple[KernelTraffic, ...]:
        """Returns a kernel for each node before a split point that computes with images.

        A kernel's bytes are 0, because the engine keeps weights and activations in memory of its own.
        """
        position = split_point.position
        count = self._manifest.find(
            f"kernels up to {position}", lambda: sum(index < position for index in self.prepared.dataflow.computing)
        )
        return (KernelTraffic(),) * int(count)

    def backbone(
        self, split_point: SplitPoint, config: ExecutionConfig, device: Device, *, keeps_copy: bool = True
    ) -> Partition:
        """Makes the partition before a split point.

        The engine has its own copy of the weights, so ``keeps_copy`` changes nothing.
        """
        if split_point.name == INPUT:
            return _pass_through
        is_whole = split_point.name == OUTPUT
        part = self._part(f"{self.entry.name} up to {split_point.name}", 0, split_point.position)
        return self._executable(part, config, device, is_whole=is_whole, gives_results=is_whole)

    def head(self, split_point: SplitPoint, config: ExecutionConfig) -> Partition:
        """Makes the partition behind a split point, on the CPU."""
        if split_point.name == OUTPUT:
            return _pass_through
        part = self._part(f"{self.entry.name} from {split_point.name}", split_point.position, None)
        return self._executable(part, config, CPU, is_whole=split_point.name == INPUT, gives_results=True)

    def _part(self, name: str, first: int, last: int | None) -> OnnxGraph:
        """Returns the part between two places; ``last`` is None for the graph's end."""

        prepare = self._prepare  # not the network itself: the part keeps what it calls, and models keep the part

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
        skeleton = without_weights(self.prepared.graph.proto, max_elements=0)
        shape = f"{self.entry.image_shape} {self.prepared.graph.inputs[0].shape[0]}"
        return hashlib.sha256(skeleton.SerializeToString(deterministic=True) + shape.encode()).hexdigest()[:12]


def _pass_through(*values: Values) -> tuple[Values, ...]:
    """Returns values as they are: the partition on the other side of a model's end has no operations."""
    return values
