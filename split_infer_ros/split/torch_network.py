"""A network of torch: a module that was traced and prepared for inference. Its partitions are cut out of the graph."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from torch import fx, nn

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.buffers.layout import TensorSpec
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
from split_infer_ros.split.network import Network
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.split.partition_maker import PartitionMaker
from split_infer_ros.split.partitions import backbone_of, head_of, split_into_segments
from split_infer_ros.split.releasable_graph import ReleasableGraph
from split_infer_ros.split.split_points import INPUT, OUTPUT, SplitPoint
from split_infer_ros.split.traced_split_points import find_split_points
from split_infer_ros.torch_graphs.module_state import state_of
from split_infer_ros.vision_ops.implementations import ImplementationChoice


class TorchNetwork(Network):
    """The network of a module that was traced and prepared for inference.

    Args:
        entry: the model's ``ModelEntry``.
        module: the model with its weights. The network changes it, so nothing else may use it.
        folding: whether batch norms are folded into convolutions. This happens before splitting, so it holds for all
            models that share the network.
        batch_size: the only batch size that the network will take; None for any. See ``SizedNetwork``.

    Attributes:
        graph: the whole network on the CPU. Its weights can be released and read again.

    Raises:
        UntraceableError: the module cannot be traced for that batch size, or for any.
    """

    can_be_stacked = True

    def __init__(
        self, entry: ModelEntry, module: nn.Module, *, folding: bool = True, batch_size: int | None = None
    ) -> None:
        self.graph = ReleasableGraph(prepare(module, entry.image_shape, folding, batch_size))
        self._folding, self._batch_size = folding, batch_size or 1
        self._weight_names: dict[int, list[str]] = {}  # of backbones that were made, by the split point's position
        split_points = find_split_points(self.graph.module, entry.image_shape, batch_size)
        super().__init__(entry, split_points, self.graph.lock)

    @cached_property
    def content(self) -> str:
        """Hexadecimal digits that identify the operations, the weights, and the versions of the exporting packages."""
        images = TensorSpec("images", self.entry.image_shape, FLOAT32)
        return export_key(self.graph.whole(), [images])

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that identify the network's operations; see ``fingerprint`` in ``split.graph``."""
        return fingerprint(self.graph.module)

    def num_parameters(self, before: str | None = None) -> int:
        """Returns the number of parameters of the network, or only of the backbone for split point ``before``."""
        module = self.graph.module
        part = module if before is None else backbone_of(module, self.split_point(before))
        return sum(parameter.numel() for parameter in part.parameters())

    def fit(self, device: Device, config: ExecutionConfig | None) -> tuple[Network, ExecutionConfig]:
        """Returns this network and the config, with the network's own folding."""
        return self, replace(config or ExecutionConfig(), folding=self._folding)

    def head_config(self, device: Device, config: ExecutionConfig) -> ExecutionConfig:
        """Returns the backbone's config, unless the backbone runs on a GPU or is compiled.

        A config for a GPU says nothing about the CPU, so the head then gets the default config, in fp32. The head is
        never compiled, because there is no time for it when the head first runs. In place of a compiled config, the
        head gets the default config in the same precision.
        """
        if device.type != "cpu":
            return ExecutionConfig()
        return config if config.compiler is Compiler.NONE else ExecutionConfig(precision=config.precision)

    def backbone(
        self, split_point: SplitPoint, config: ExecutionConfig, device: Device, *, keeps_copy: bool = True
    ) -> Partition:
        """Makes the partition before a split point, with all its weights. Those that were released are read again."""
        partition = self._with_weights(backbone_of, split_point)
        self._weight_names[split_point.position] = list(state_of(partition))
        weights, is_whole = DeviceWeights(), split_point.name == OUTPUT
        backbone = self._maker(config, device).partition(
            partition,
            first=1,
            last=split_point.position,
            inputs=(TensorSpec("images", self.entry.image_shape, config.boundary_dtype),),
            weights=weights,
            is_whole=is_whole,
            gives_results=is_whole,
        )
        if not keeps_copy:
            del partition
            self._keep_on_device_alone(weights)
        return (
            backbone
            if config.operators is ImplementationChoice.MEASURED
            else OperatorOverride(backbone, config.operators)
        )

    def _keep_on_device_alone(self, weights: DeviceWeights) -> None:
        """Releases the CPU's copy of weights that the GPU has. Partitions that were made before keep theirs."""
        names = weights.equal_in_kind(state_of(self.graph.module))
        if names and self.graph.release(names, weights.fetch):
            gc.collect()  # traced graphs refer to themselves, and hold weights until then

    def host_weight_bytes(self, split_point: SplitPoint) -> int:
        """Returns how many bytes a backbone's weights take on the CPU; 0 if no backbone was made at the split point."""
        state = state_of(self.graph.module)
        return bytes_of(state[name] for name in self._weight_names.get(split_point.position, ()))

    def head(self, split_point: SplitPoint, config: ExecutionConfig) -> Partition:
        """Makes the partition behind a split point, with all its weights. Those that were released are read again."""
        maker = self._maker(config, CPU)
        head = maker.partition(
            self._with_weights(head_of, split_point),
            first=split_point.position,
            inputs=split_point.in_precision(config.boundary_dtype).tensors,
            is_whole=split_point.name == INPUT,
            gives_results=True,
        )
        return maker.from_float32(head, split_point)

    def segments(
        self, config: ExecutionConfig, device: Device, *, takes_float32: bool = False
    ) -> tuple[Partition, ...]:
        """Makes the segments between neighbouring split points. They are never compiled."""
        maker = self._maker(replace(config, compiler=Compiler.NONE), device)
        points = [point.in_precision(config.boundary_dtype) for point in self.split_points]
        segments = maker.segments(split_into_segments(self.graph.whole(), points), points)
        if not takes_float32:
            return tuple(segments)
        return tuple(maker.from_float32(part, start) for part, start in zip(segments, points[:-1], strict=True))

    def kernels_before(self, split_point: SplitPoint, config: ExecutionConfig) -> tuple[KernelTraffic, ...]:
        """Returns the kernels of the partition before a split point, in order."""
        part = backbone_of(self.graph.module, split_point)
        item_bytes = config.boundary_dtype.itemsize
        kernels = kernels_of(part, self.entry.image_shape, item_bytes=item_bytes, count=self._batch_size)
        return kernels if config.engine is Engine.TORCH else (KernelTraffic(),) * len(kernels)

    def _with_weights(
        self, part_of: Callable[[fx.GraphModule, SplitPoint], fx.GraphModule], split_point: SplitPoint
    ) -> fx.GraphModule:
        """Returns a partition with all its weights, including those that were released."""
        module = self.graph.module
        part = part_of(module, split_point)
        return part_of(module, split_point) if self.graph.restore(state_of(part)) else part

    def _maker(self, config: ExecutionConfig, device: Device) -> PartitionMaker:
        ends = [(kind, self.split_point(name).position) for kind, name in config.segments]
        changes = ConvolutionChanges(self.graph.module, ends, config.convolutions)
        return PartitionMaker(changes, config, device=device, name=self.entry.name)


def torch_network(model: SplitModel, purpose: str, advice: str) -> TorchNetwork:
    """Returns the network of a model if it is a ``TorchNetwork``, and refuses models of other kinds.

    Args:
        model: any model.
        purpose: what needs a model of torch, as the subject of a sentence.
        advice: what a user of another model can do instead, as the end of a sentence.

    Raises:
        ConfigurationError: the model is of another kind.
    """
    network = model.network
    if not isinstance(network, TorchNetwork):
        raise ConfigurationError(
            f"{purpose} needs a model of torch, and {model.entry.name} is {network.kind}: {advice}"
        )
    return network
