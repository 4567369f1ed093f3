"""A model of torch that is prepared for inference and split on request."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property

from torch import Tensor, fx, nn

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.buffers.pool_allocators import POOLED
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import Compiler, ExecutionConfig
from split_infer_ros.engines.traced_part import OperatorOverride
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.memory_cost.traffic import KernelTraffic
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.onnx.conversion.export import export_key
from split_infer_ros.runtime.device import CPU, Device
from split_infer_ros.split.convolution_changes import ConvolutionChanges
from split_infer_ros.split.device_weights import DeviceWeights, bytes_of
from split_infer_ros.split.graph import fingerprint, prepare
from split_infer_ros.split.kernel_traffic import kernels_of
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.split.partition_maker import PartitionMaker
from split_infer_ros.split.partitions import backbone_of, head_of
from split_infer_ros.split.releasable_graph import Fetch, ReleasableGraph
from split_infer_ros.split.segments import split_into_segments
from split_infer_ros.split.split_points import INPUT, OUTPUT, SplitPoint
from split_infer_ros.split.traced_split_points import find_split_points
from split_infer_ros.torch_graphs.module_state import state_of
from split_infer_ros.vision_ops.implementations import ImplementationChoice


class TorchModel(SplitModel):
    """A prepared module and its split points. The backbone runs on ``device``, the head on the CPU.

    Args:
        entry: the model's entry in the catalogue.
        module: the model with its weights. It is taken over and changed.
        device: where the backbone runs.
        execution_config: how both partitions run, as far as their device allows.
        batch_size: the only one that the model will take; None for any. See ``SizedModel``.

    Raises:
        UntraceableError: the module cannot be traced for that batch size, or for any.
    """

    def __init__(
        self,
        entry: ModelEntry,
        module: nn.Module,
        device: Device,
        *,
        execution_config: ExecutionConfig | None = None,
        batch_size: int | None = None,
    ) -> None:
        config = execution_config or ExecutionConfig()
        self._source: TorchModel | None = None
        self._weight_names: dict[int, list[str]] = {}  # of backbones that were made, by the split point's position
        self._batch_size = batch_size or 1
        self._shared = ReleasableGraph(prepare(module, entry.image_shape, config.folding, batch_size))
        super().__init__(
            entry,
            device,
            execution_config=config,
            split_points=find_split_points(self.graph, entry.image_shape, batch_size),
            lock=self._shared.lock,
        )

    @property
    def can_be_stacked(self) -> bool:  # type: ignore[override]
        """False for a subclass, which may compute something else."""
        return type(self) is TorchModel

    def placed(self, device: Device, execution_config: ExecutionConfig | None = None) -> TorchModel:
        """Returns the same model with its backbone on another device or in another execution config.

        Both models share the weights on the CPU. Folding stays as in this model, because it comes before splitting.
        """
        other = copy.copy(self)
        other._source = self  # keeps this model alive, so that later loads share it
        other.device = device
        if execution_config is not None:
            other.execution_config = replace(execution_config, folding=self.execution_config.folding)
        other.split_points = tuple(split_point.in_precision(other.dtype) for split_point in self.split_points)
        other._reset_caches()
        return other

    def release(self, names: Collection[str], fetch: Fetch) -> bool:
        """Frees the memory of weights. A partition that is made later reads the weights that it needs again.

        Partitions that were made before and are in use keep their weights.

        Args:
            names: the names of parameters and buffers.
            fetch: reads the weights again.

        Returns:
            False if all of them had been released before.
        """
        with self._lock:
            frees_any = self._shared.release(names, fetch)
            self._backbones.clear()
            self._heads.clear()
            return frees_any

    def state(self) -> dict[str, Tensor]:
        """Returns all weights by name. Released weights are read, but not kept.

        Raises:
            ConfigurationError: released weights cannot be read.
        """
        return self._shared.state()

    def whole(self) -> fx.GraphModule:
        """Returns the whole model on the CPU with all its weights. Released weights are read again.

        Raises:
            ConfigurationError: released weights cannot be read.
        """
        self._shared.restore()
        return self.graph

    @property
    def graph(self) -> fx.GraphModule:
        """The whole model on the CPU, prepared for inference. It is shared and must not be changed.

        It has stand-ins for weights that were released; see ``state``.
        """
        return self._shared.module

    @cached_property
    def content(self) -> str:
        """Identifies the model's operations and weights, and the versions that would export it."""
        images = TensorSpec("images", self.entry.image_shape, FLOAT32)
        return export_key(self.whole(), [images])

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the model's operations; see ``graph.fingerprint``."""
        return fingerprint(self.graph)

    @property
    def parameters(self) -> int:
        """How many parameters the whole model has."""
        return sum(parameter.numel() for parameter in self.graph.parameters())

    def parameters_before(self, name: str) -> int:
        """Returns how many parameters the partition before the split point of that name has on ``device``."""
        return sum(parameter.numel() for parameter in backbone_of(self.graph, self.split_point(name)).parameters())

    def segments(self) -> tuple[tuple[Partition, ...], tuple[Partition, ...]]:
        """Returns the segments between neighbouring split points, as the backbone runs them and as the head does.

        Segments are never compiled.
        """
        self._shared.restore()
        segments = split_into_segments(self.graph, self.split_points)
        backbone_maker = self._maker(replace(self.execution_config, compiler=Compiler.NONE), self.device)
        backbones = backbone_maker.segments(segments, self.split_points)
        head_maker = self._maker(replace(self._head_execution_config, compiler=Compiler.NONE), CPU)
        head_points = [point.in_precision(self._head_execution_config.boundary_dtype) for point in self.split_points]
        heads = [
            head_maker.from_float32(segment, start)
            for segment, start in zip(head_maker.segments(segments, head_points), head_points[:-1], strict=True)
        ]
        return tuple(backbones), tuple(heads)

    def _find_kernels(self, split_point: SplitPoint) -> tuple[KernelTraffic, ...]:
        part = backbone_of(self.graph, split_point)
        kernels = kernels_of(part, self.entry.image_shape, item_bytes=self.dtype.itemsize, count=self._batch_size)
        if self.execution_config.engine is Engine.TORCH:
            return kernels
        return (KernelTraffic(),) * len(kernels)

    @property
    def _head_execution_config(self) -> ExecutionConfig:
        """The backbone's configuration, or a default one if that does not suit the head.

        A configuration or a precision that suits a GPU says nothing about the CPU. The head is never compiled, because
        there is no time for that when it first runs.
        """
        config = self.execution_config
        if self.device.type != "cpu":
            return ExecutionConfig()
        return config if config.compiler is Compiler.NONE else ExecutionConfig(precision=config.precision)

    def _make_backbone(self, split_point: SplitPoint) -> Partition:
        config = self.execution_config
        partition = self._with_weights(backbone_of, split_point)
        self._weight_names[split_point.position] = list(state_of(partition))
        images = TensorSpec("images", self.entry.image_shape, self.dtype)
        weights = DeviceWeights()
        backbone = self._maker(config, self.device).partition(
            partition,
            first=1,
            last=split_point.position,
            inputs=(images,),
            weights=weights,
            is_whole=split_point.name == OUTPUT,
            gives_results=split_point.name == OUTPUT,
        )
        if self._backbones.policy in POOLED:
            del partition
            self._keep_on_device_alone(weights)
        return (
            backbone
            if config.operators is ImplementationChoice.MEASURED
            else OperatorOverride(backbone, config.operators)
        )

    def _keep_on_device_alone(self, weights: DeviceWeights) -> None:
        """Releases the CPU's copy of weights that the GPU has. Partitions that were made before keep theirs."""
        names = weights.equal_in_kind(state_of(self.graph))
        if names and self._shared.release(names, weights.fetch):
            gc.collect()  # traced graphs refer to themselves, and hold weights until then

    def host_weight_bytes(self, split_point: SplitPoint) -> int:
        """Returns the memory on the CPU of the weights before a split point whose backbone was made."""
        state = state_of(self.graph)
        return bytes_of(state[name] for name in self._weight_names.get(split_point.position, ()))

    def _make_head(self, split_point: SplitPoint) -> Partition:
        config = self._head_execution_config
        partition = self._with_weights(head_of, split_point)
        maker = self._maker(config, CPU)
        inputs = split_point.in_precision(config.boundary_dtype).tensors
        head = maker.partition(
            partition,
            first=split_point.position,
            inputs=inputs,
            is_whole=split_point.name == INPUT,
            gives_results=True,
        )
        return maker.from_float32(head, split_point)

    def _with_weights(
        self, part_of: Callable[[fx.GraphModule, SplitPoint], fx.GraphModule], split_point: SplitPoint
    ) -> fx.GraphModule:
        """Returns a partition with all its weights, including those that were released."""
        part = part_of(self.graph, split_point)
        return part_of(self.graph, split_point) if self._shared.restore(state_of(part)) else part

    def _maker(self, config: ExecutionConfig, device: Device) -> PartitionMaker:
        ends = [(kind, self.split_point(name).position) for kind, name in config.segments]
        changes = ConvolutionChanges(self.graph, ends, config.convolutions)
        return PartitionMaker(changes, config, device=device, name=self.entry.name)


def torch_model(model: SplitModel, purpose: str, advice: str) -> TorchModel:
    """Returns a model as a ``TorchModel``, and refuses models of other kinds.

    Args:
        model: any model.
        purpose: what needs a model of torch, as the subject of a sentence.
        advice: what a user of another model can do instead, as the end of a sentence.

    Raises:
        ConfigurationError: the model is of another kind.
    """
    if not isinstance(model, TorchModel):
        raise ConfigurationError(f"{purpose} needs a model of torch, and {model.entry.name} is {model.kind}: {advice}")
    return model
