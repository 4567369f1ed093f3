"""A model that is split on request: what models of torch and ONNX models have in common."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import nn

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.executable import PartChain
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.split.split_points import SplitPoint, choose_split_point

MAX_PARTITIONS = 4  # kept of each kind, since a split point that moves may come back

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

_PartitionCache = OrderedDict[SplitPoint, nn.Module]


class SplitModel(ABC):
    """A model and its split points. The backbone runs on ``device``, the head on the CPU in float32.

    Args:
        entry: the model's entry in the catalogue.
        device: where the backbone runs.
        dtype: in which the backbone computes and its features cross.
        execution_config: how both partitions run, as far as their device and precision allow.
        split_points: in order, from ``input`` to ``output``.
        lock: is held while a partition is made. Placements of one model share it.

    Attributes:
        native_engine: the engine that runs the model as it came, without exporting or converting it.
        kind: what the model is, for messages.
    """

    native_engine = Engine.TORCH
    kind = "a model of torch"

    def __init__(
        self,
        entry: ModelEntry,
        device: torch.device,
        dtype: torch.dtype,
        *,
        execution_config: ExecutionConfig,
        split_points: tuple[SplitPoint, ...],
        lock: threading.RLock,
    ) -> None:
        self.entry = entry
        self.device = device
        self.dtype = dtype
        self.execution_config = execution_config
        self.split_points = split_points
        self._lock = lock
        self._reset_caches()

    @abstractmethod
    def placed(
        self, device: torch.device, dtype: torch.dtype, execution_config: ExecutionConfig | None = None
    ) -> SplitModel:
        """Returns the same model with its backbone on another device, or in another precision or execution config.

        Both models share the weights on the CPU.

        Raises:
            ConfigurationError: the model cannot run so.
        """

    def best_device(self) -> torch.device:
        """Returns the device on which the backbone should run if the user names none."""
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")

    def split_point(self, name: str) -> SplitPoint:
        """Returns the split point of that name. ``default`` is the model's own; see ``default_split_point``.

        Raises:
            UnknownSplitPointError: the model has no such split point.
        """
        wanted = self.default_split_point if name == "default" else name
        return choose_split_point(self.split_points, wanted, self.entry.name)

    @property
    def default_split_point(self) -> str:
        """The one that the catalogue's entry names, else the last one before ``output``."""
        return self.entry.default_split_point or self.split_points[-2:][0].name

    def backbone(self, name: str) -> nn.Module:
        """Returns the partition before the split point of that name.

        It maps (N, C, H, W) of ``dtype`` on ``device`` to the split point's tensors.
        """
        return self._partition(self._backbones, self._make_backbone, name)

    def head(self, name: str) -> nn.Module:
        """Returns the partition behind the split point of that name.

        It maps the split point's tensors, in float32, to the model's outputs.
        """
        return self._partition(self._heads, self._make_head, name)

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that identify the model's operations, their order and their shapes."""

    @property
    @abstractmethod
    def parameters(self) -> int:
        """How many parameters the whole model has."""

    @abstractmethod
    def parameters_before(self, name: str) -> int:
        """Returns how many parameters the partition before the split point of that name has on ``device``."""

    @abstractmethod
    def segments(self) -> tuple[tuple[nn.Module, ...], tuple[nn.Module, ...]]:
        """Returns the segments between neighbouring split points as the backbone and as the head runs them.

        Segments are never compiled.
        """

    def warm_up_sizes(self, batch_size: int) -> Sequence[int]:
        """Returns the numbers of images that should run before frames come, of batches up to ``batch_size``."""
        return sorted({1, batch_size})

    @property
    def head_engine(self) -> Engine:
        """The engine that runs the head."""
        return self.native_engine

    @property
    def note(self) -> str:
        """What a user should know about how the model runs, in a sentence; empty if there is nothing."""
        return ""

    @abstractmethod
    def _make_backbone(self, split_point: SplitPoint) -> nn.Module:
        """Makes the partition before a split point."""

    @abstractmethod
    def _make_head(self, split_point: SplitPoint) -> nn.Module:
        """Makes the partition behind a split point."""

    def _partition(self, cache: _PartitionCache, make: Callable[[SplitPoint], nn.Module], name: str) -> nn.Module:
        split_point = self.split_point(name)
        with self._lock:
            if split_point not in cache:
                cache[split_point] = make(split_point)
            cache.move_to_end(split_point)
            while len(cache) > MAX_PARTITIONS:
                cache.popitem(last=False)
            return cache[split_point]

    def _reset_caches(self) -> None:
        self._backbones: _PartitionCache = OrderedDict()
        self._heads: _PartitionCache = OrderedDict()


def joined(parts: Sequence[nn.Module]) -> nn.Module:
    """Returns a module that runs the parts one after the other."""
    return parts[0] if len(parts) == 1 else PartChain(parts)
