"""A model of torch that is prepared for inference and split on request."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor, fx, nn

from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.executable import OperatorOverride, make_executable
from split_infer_ros.engines.execution_config import Compiler, Convolutions, ExecutionConfig
from split_infer_ros.engines.module_state import state_of
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.split.export import copy_to_device
from split_infer_ros.split.graph import fingerprint, prepare
from split_infer_ros.split.model import SplitModel, joined
from split_infer_ros.split.partitions import backbone_of, extract, head_of, outputs_of
from split_infer_ros.split.releasable_graph import Fetch, ReleasableGraph
from split_infer_ros.split.segments import split_into_segments
from split_infer_ros.split.split_points import SplitPoint, find_split_points, live_values
from split_infer_ros.vision_ops.implementations import ImplementationChoice


class TorchModel(SplitModel):
    """A prepared module and its split points. The backbone runs on ``device``, the head on the CPU in float32.

    Args:
        entry: the model's entry in the catalogue.
        module: the model with its weights. It is taken over and changed.
        device: where the backbone runs.
        execution_config: how both partitions run, as far as their device and precision allow.
        batch_size: the only one that the model will take; None for any. See ``SizedModel``.

    Raises:
        UntraceableError: the module cannot be traced for that batch size, or for any.
    """

    def __init__(
        self,
        entry: ModelEntry,
        module: nn.Module,
        device: torch.device,
        *,
        execution_config: ExecutionConfig | None = None,
        batch_size: int | None = None,
    ) -> None:
        config = execution_config or ExecutionConfig()
        self._source: TorchModel | None = None
        self._shared = ReleasableGraph(prepare(module, entry.image_shape, config.folding, batch_size))
        super().__init__(
            entry,
            device,
            torch.float32,
            execution_config=config,
            split_points=find_split_points(self.graph, entry.image_shape, batch_size),
            lock=self._shared.lock,
        )

    def placed(
        self, device: torch.device, dtype: torch.dtype, execution_config: ExecutionConfig | None = None
    ) -> TorchModel:
        """Returns the same model with its backbone on another device, or in another precision or execution config.

        Both models share the weights on the CPU. Folding stays as it is here, since it comes before splitting.
        """
        other = copy.copy(self)
        other._source = self  # keeps this model alive, so that others who ask for it share it
        other.device, other.dtype = device, dtype
        if execution_config is not None:
            other.execution_config = replace(execution_config, folding=self.execution_config.folding)
        other.split_points = tuple(split_point.in_precision(dtype) for split_point in self.split_points)
        other._reset_caches()
        return other

    def release(self, names: Collection[str], fetch: Fetch) -> bool:
        """Frees the memory of weights. A partition that is made later reads the weights that it needs again.

        Partitions that were made before and are in use keep their weights.

        Args:
            names: of parameters and buffers.
            fetch: reads them again.

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

    @property
    def graph(self) -> fx.GraphModule:
        """The whole model on the CPU, prepared for inference. It is shared and must not be changed.

        It has stand-ins for weights that were released; see ``state``.
        """
        return self._shared.module

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

    def segments(self) -> tuple[tuple[nn.Module, ...], tuple[nn.Module, ...]]:
        """Returns the segments between neighbouring split points as the backbone and as the head runs them.

        Segments are never compiled.
        """
        self._shared.restore()
        pieces = split_into_segments(self.graph, self.split_points)
        ends = [split_point.position for split_point in self.split_points[1:]]
        backbone_config, head_config = self.execution_config, self._head_execution_config
        starts = self.split_points[:-1]
        backbones = [
            self._make_on_device(
                piece, replace(backbone_config, compiler=Compiler.NONE), kind=kind, inputs=start.tensors
            )
            for piece, start, kind in zip(pieces, starts, self._kinds_before(ends, backbone_config), strict=True)
        ]
        heads = [
            self._make_on_host(piece, replace(head_config, compiler=Compiler.NONE), kind=kind, split_point=start)
            for piece, start, kind in zip(pieces, starts, self._kinds_before(ends, head_config), strict=True)
        ]
        return tuple(backbones), tuple(heads)

    @property
    def head_engine(self) -> Engine:
        """The engine that runs the head."""
        return self._head_execution_config.engine

    @property
    def _head_execution_config(self) -> ExecutionConfig:
        """The backbone's configuration, or the default one where that does not suit the head.

        A configuration that was found on a GPU says nothing about the CPU. And when a head first runs, there is no
        time to compile it.
        """
        config = self.execution_config
        return config if self.device.type == "cpu" and config.compiler is Compiler.NONE else ExecutionConfig()

    def _make_backbone(self, split_point: SplitPoint) -> nn.Module:
        config = self.execution_config
        partition = self._with_weights(backbone_of, split_point)
        parts = self._parts(config, partition, first=1, last=split_point.position)
        images = TensorSpec("images", self.entry.image_shape, self.dtype)
        backbone = joined([self._make_on_device(part, config, kind=kind, inputs=(images,)) for kind, part in parts])
        return (
            backbone
            if config.operators is ImplementationChoice.MEASURED
            else OperatorOverride(backbone, config.operators)
        )

    def _make_head(self, split_point: SplitPoint) -> nn.Module:
        config = self._head_execution_config
        partition = self._with_weights(head_of, split_point)
        parts = self._parts(config, partition, first=split_point.position, last=len(self.graph.graph.nodes) - 1)
        return joined([self._make_on_host(part, config, kind=kind, split_point=split_point) for kind, part in parts])

    def _with_weights(
        self, part_of: Callable[[fx.GraphModule, SplitPoint], fx.GraphModule], split_point: SplitPoint
    ) -> fx.GraphModule:
        """Returns a partition with all its weights, including those that were released."""
        part = part_of(self.graph, split_point)
        return part_of(self.graph, split_point) if self._shared.restore(state_of(part)) else part

    def _parts(
        self, config: ExecutionConfig, partition: fx.GraphModule, *, first: int, last: int
    ) -> list[tuple[Convolutions, fx.GraphModule]]:
        """Divides a partition into parts in which all convolutions run alike.

        Args:
            config: says where that changes.
            partition: the nodes from ``first`` up to, not including, ``last``.
            first, last: positions in the graph.
        """
        ends = [self.split_point(name).position for _, name in config.segments]
        inner_ends = [end for end in ends if first < end < last]
        if not inner_ends:
            return [(self._convolutions_before(last, config), partition)]
        nodes = list(self.graph.graph.nodes)
        parts = []
        for start, end in itertools.pairwise([first, *inner_ends, last]):
            outputs = live_values(nodes, end) if end < len(nodes) - 1 else outputs_of(nodes)
            part = extract(self.graph, nodes[start:end], inputs=live_values(nodes, start), outputs=outputs)
            parts.append((self._convolutions_before(end, config), part))
        return parts

    def _convolutions_before(self, position: int, config: ExecutionConfig) -> Convolutions:
        """Returns how convolutions run in the segment of the node before a position."""
        for kind, name in config.segments:
            if position <= self.split_point(name).position:
                return kind
        return config.convolutions

    def _kinds_before(self, positions: Sequence[int], config: ExecutionConfig) -> list[Convolutions]:
        return [self._convolutions_before(position, config) for position in positions]

    def _make_on_device(
        self, part: fx.GraphModule, config: ExecutionConfig, *, kind: Convolutions, inputs: Sequence[TensorSpec]
    ) -> nn.Module:
        """Makes a part executable on the backbone's device. ``inputs`` count only where the config has no segments."""
        if self.device.type != "cpu" or self.dtype != torch.float32:
            part = copy_to_device(part, self.device, self.dtype)
        config = replace(config, convolutions=kind)
        return make_executable(part, config, inputs=inputs, device=self.device, name=self.entry.name)

    def _make_on_host(
        self, part: fx.GraphModule, config: ExecutionConfig, *, kind: Convolutions, split_point: SplitPoint
    ) -> nn.Module:
        """Makes a part executable on the CPU. ``split_point`` counts only where the config has no segments."""
        inputs = split_point.in_precision(torch.float32).tensors
        return make_executable(part, replace(config, convolutions=kind), inputs=inputs, name=self.entry.name)


def torch_model(model: SplitModel, purpose: str, advice: str) -> TorchModel:
    """Returns a model of torch as what it is.

    Args:
        model: any model.
        purpose: what needs a model of torch, as the subject of a sentence.
        advice: what a user of another model can do instead, as the end of a sentence.

    Raises:
        ConfigurationError: it is a model of another kind.
    """
    if not isinstance(model, TorchModel):
        raise ConfigurationError(f"{purpose} needs a model of torch, and {model.entry.name} is {model.kind}: {advice}")
    return model
