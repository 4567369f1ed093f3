"""A model of torch that can be traced for single batch sizes only. It is traced again for each size that occurs."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.memory_cost.traffic import KernelTraffic
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.runtime.device import CPU, Device
from split_infer_ros.split.export import UntraceableError
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.split.split_points import SplitPoint
from split_infer_ros.split.torch_model import TorchModel

REFERENCE = 2  # images; the graph for two images shows where the batch is

MakePart = Callable[[TorchModel], Partition]
"""Makes a part of the model for one batch size."""


class SizedModel(SplitModel):
    """A model with a forward that branches on the batch size, or writes it into constants.

    Its split points are those of the graph for two images. A batch size whose graph has other split points runs in
    pairs of images. Tracing takes seconds, so the pipeline warms up with every size.

    Args:
        entry: the model's entry in the catalogue.
        module: the model with its weights. It is taken over and changed.
        execution_config: how both partitions run, as far as their device allows.

    Raises:
        UntraceableError: the module cannot be traced for two images.
    """

    kind = "traced for each batch size"
    has_one_graph = False

    def __init__(
        self, entry: ModelEntry, module: nn.Module, *, execution_config: ExecutionConfig | None = None
    ) -> None:
        self._module = module
        self._source: SizedModel | None = None
        self._sized: dict[int, TorchModel | None] = {}  # by batch size; None if it must run in pairs
        device, config = CPU, execution_config or ExecutionConfig()
        reference = TorchModel(entry, module, device, execution_config=config, batch_size=REFERENCE)
        self._sized[REFERENCE] = reference
        super().__init__(
            entry,
            device,
            execution_config=config,
            split_points=reference.split_points,
            lock=threading.RLock(),
        )

    def placed(self, device: Device, execution_config: ExecutionConfig | None = None) -> SizedModel:
        """Returns the same model with its backbone on another device or in another execution config.

        Raises:
            ConfigurationError: the engine is not torch.
        """
        config = execution_config or self.execution_config
        if config.engine is not Engine.TORCH:
            raise ConfigurationError(
                f"{self.entry.name} is traced for each batch size, so engine {config.engine.value} cannot take it: "
                "take engine torch, or a model whose forward does not depend on the number of images."
            )
        other = copy.copy(self)
        other._source = self  # keeps this model alive, so that later loads share it
        other._sized = {}
        other.device, other.execution_config = device, config
        other.split_points = tuple(split_point.in_precision(other.dtype) for split_point in self.split_points)
        other._reset_caches()
        return other

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that identify the operations for two images."""
        return self._reference.fingerprint

    @property
    def parameters(self) -> int:
        """How many parameters the whole model has."""
        return self._reference.parameters

    def parameters_before(self, name: str) -> int:
        """Returns how many parameters the partition before the split point of that name has on ``device``."""
        return self._reference.parameters_before(name)

    def segments(self) -> tuple[tuple[Partition, ...], tuple[Partition, ...]]:
        """Returns the segments between neighbouring split points, as the backbone runs them and as the head does."""
        made: dict[TorchModel, tuple[tuple[Partition, ...], tuple[Partition, ...]]] = {}

        def segment(model: TorchModel, side: int, index: int) -> Partition:
            if model not in made:
                made[model] = model.segments()
            return made[model][side][index]

        backbones, heads = (
            tuple(
                _SizedPart(self, lambda model, side=side, index=index: segment(model, side, index))  # type: ignore[misc]
                for index in range(len(self.split_points) - 1)
            )
            for side in (0, 1)
        )
        return backbones, heads

    def _find_kernels(self, split_point: SplitPoint) -> tuple[KernelTraffic, ...]:
        return self._reference.kernels_before(split_point.name)

    @property
    def _head_execution_config(self) -> ExecutionConfig:
        """The head's config in the models for each size."""
        return self._reference._head_execution_config

    def warm_up_sizes(self, batch_size: int) -> Sequence[int]:
        """Returns every size up to ``batch_size``: each is traced when it first runs."""
        return range(1, batch_size + 1)

    @property
    def note(self) -> str:
        """What a user should know about how the model runs."""
        return (
            f"{self.entry.name} can be traced for single batch sizes only, so it is traced for each size at the start, "
            "which takes seconds a size."
        )

    def for_size(self, batch_size: int) -> TorchModel | None:
        """Returns the model for a batch size; None if its split points are not those of the graph for two images."""
        with self._lock:
            if batch_size not in self._sized:
                self._sized[batch_size] = self._make_for_size(batch_size)
            return self._sized[batch_size]

    @property
    def _reference(self) -> TorchModel:
        reference = self.for_size(REFERENCE)
        assert reference is not None
        return reference

    def _make_for_size(self, batch_size: int) -> TorchModel | None:
        if self._source is not None:
            source = self._source.for_size(batch_size)
            return source and source.placed(self.device, self.execution_config)
        try:
            with torch.inference_mode(False), torch.no_grad():  # a size may occur first while frames are computed
                model = TorchModel(
                    self.entry, self._module, self.device, execution_config=self.execution_config, batch_size=batch_size
                )
        except UntraceableError:
            return None
        own = {point.name: point for point in model.split_points}
        model.split_points = tuple(own[point.name] for point in self.split_points if point.name in own)
        return model if _crossing(model.split_points) == _crossing(self.split_points) else None

    def _make_backbone(self, split_point: SplitPoint) -> Partition:
        return _SizedPart(self, lambda model: model.backbone(split_point.name))

    def _make_head(self, split_point: SplitPoint) -> Partition:
        return _SizedPart(self, lambda model: model.head(split_point.name))


class _SizedPart(nn.Module):
    """A part that is made for each batch size when it first runs."""

    def __init__(self, model: SizedModel, make: MakePart) -> None:
        super().__init__()
        self._model, self._make = [model], make  # in a list, so that torch does not look into it
        self._made: dict[int, Partition | None] = {}

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Maps tensors (n, ...) to a tuple of tensors (n, ...)."""
        size = len(tensors[0])
        if size not in self._made:
            model = self._model[0].for_size(size)
            self._made[size] = None if model is None else self._make(model)
        part = self._made[size]
        return tuple(part(*tensors)) if part is not None else self._in_pairs(tensors)

    def _in_pairs(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Runs two images at a time. The last one runs twice if it has no partner."""
        size = len(tensors[0])
        runs = []
        for first in range(0, size, REFERENCE):
            rows = torch.arange(first, first + REFERENCE, device=tensors[0].device).clamp(max=size - 1)
            runs.append(self(*(tensor[rows] for tensor in tensors)))
        return tuple(torch.cat(results)[:size] for results in zip(*runs, strict=True))


def _crossing(split_points: Sequence[SplitPoint]) -> list[object]:
    """Returns what must be equal for two graphs to have the same split points."""
    return [(point.name, [(spec.shape, spec.dtype) for spec in point.tensors]) for point in split_points]
