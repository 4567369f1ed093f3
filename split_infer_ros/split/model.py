"""A model that is split on request: what models of torch and ONNX models have in common."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

from split_infer_ros.buffers.host_arrays import DType, Values
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.memory_cost.traffic import KernelTraffic
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.runtime.device import CPU, Device
from split_infer_ros.split.partition_cache import BackboneCache, Partition, PartitionCache
from split_infer_ros.split.split_points import SplitPoint, choose_split_point
from split_infer_ros.split.torch_needs import num_gpus


class SplitModel(ABC):
    """A model and its split points. The backbone runs on ``device``, the head on the CPU.

    Args:
        entry: the model's entry in the catalogue.
        device: where the backbone runs.
        execution_config: how both partitions run, as far as their device allows.
        split_points: the split points in order, from ``input`` to ``output``.
        lock: the lock that is held while a partition is made. Placements of one model share it.

    Attributes:
        native_engine: the engine that runs the model as it came, without exporting or converting it.
        kind: what the model is, for messages.
        weights_source: identifies the source of the weights; see the function of that name. Empty if only their values
            identify them.
        is_quantised: whether ``quantise`` made the model's weights, so that it can compute in int8.
        has_one_graph: whether one graph serves all batch sizes, so that engines other than torch can take it.
        takes_batches: whether the model runs any number of images at once. If not, a batch runs in parts of a fixed
            size.
        can_be_stacked: whether a ``StackedModel`` computes the model as this class does.
    """

    native_engine = Engine.TORCH
    kind = "a model of torch"
    weights_source = ""
    is_quantised = False
    has_one_graph = True
    takes_batches = True
    can_be_stacked = False

    def __init__(
        self,
        entry: ModelEntry,
        device: Device,
        *,
        execution_config: ExecutionConfig,
        split_points: tuple[SplitPoint, ...],
        lock: threading.RLock,
    ) -> None:
        self.entry = entry
        self.device = device
        self.execution_config = execution_config
        self.split_points = split_points
        self._lock = lock
        self._reset_caches()

    @abstractmethod
    def placed(self, device: Device, execution_config: ExecutionConfig | None = None) -> SplitModel:
        """Returns the same model with its backbone on another device or in another execution config.

        Both models share the weights on the CPU.

        Raises:
            ConfigurationError: the model cannot run there or in this config.
        """

    def use_memory(self, policy: Policy) -> None:
        """Sets the policy of the memory for weights on a GPU. It holds for backbones that are made from now on.

        The cache drops backbones in memory of another policy. Callers that use one keep it.

        Raises:
            ConfigurationError: torch cannot allocate memory of the policy on this machine.
        """
        with self._lock:
            self._backbones.use_memory(policy)

    def weight_bytes(self, name: str) -> int:
        """Returns the bytes of all backbones' weights on their device, plus the CPU's copy of one backbone's weights.

        Under ``managed`` and ``pinned``, the bytes on the device are what torch's allocator has taken. Engines other
        than torch keep weights of their own, which are not counted.

        Args:
            name: the split point of that one backbone, which was made before.
        """
        with self._lock:
            return self._backbones.weight_bytes() + self.host_weight_bytes(self.split_point(name))

    def host_weight_bytes(self, split_point: SplitPoint) -> int:
        """Returns the bytes on the CPU of the weights before a split point, as far as torch has them."""
        return 0

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image that the backbone takes."""
        return self.entry.image_shape

    @property
    def execution_config(self) -> ExecutionConfig:
        """How both partitions run, as far as their device allows.

        Raises:
            ConfigurationError: the config says int8, and the model is not quantised. It would run in float32.
        """
        return self._execution_config

    @execution_config.setter
    def execution_config(self, config: ExecutionConfig) -> None:
        if config.precision is Precision.INT8 and not self.is_quantised:
            raise ConfigurationError(
                f"{self.entry.name} is {self.kind} and not quantised, so it cannot run in int8 as it is: load it with "
                "precision int8, which reads what `split_infer_ros quantise` made of it."
            )
        self._execution_config = config

    @property
    def precision(self) -> Precision:
        """The precision in which the backbone computes."""
        return self.execution_config.precision

    @property
    def dtype(self) -> DType:
        """The dtype of the backbone's images, and of all features that follow the precision."""
        return self.execution_config.boundary_dtype

    def blank_images(self, batch_size: int) -> Values:
        """Returns black images (n, C, H, W) as the backbone takes them."""
        return self.execution_config.blank_images((batch_size, *self.image_shape), self.device)

    @property
    def takes_arrays(self) -> bool:
        """Whether the backbone takes arrays and gives arrays. Otherwise it takes and gives tensors on its device."""
        return False

    def best_device(self) -> Device:
        """Returns the device on which the backbone should run if the user names none: the first GPU, else the CPU."""
        return Device("cuda:0") if num_gpus() else CPU

    def split_point(self, name: str) -> SplitPoint:
        """Returns the split point of that name. ``default`` is the model's own; see ``default_split_point``.

        Raises:
            UnknownSplitPointError: the model has no such split point.
        """
        wanted = self.default_split_point if name == "default" else name
        return choose_split_point(self.split_points, wanted, self.entry.name)

    @property
    def default_split_point(self) -> str:
        """The split point that the catalogue's entry names, or else the last one before ``output``."""
        return self.entry.default_split_point or self.split_points[-2:][0].name

    def backbone(self, name: str) -> Partition:
        """Returns the partition before the split point of that name.

        It maps (N, C, H, W) of ``dtype`` on ``device`` to the split point's tensors.
        """
        with self._lock:
            return self._backbones.get(self.split_point(name), self._make_backbone)

    def head(self, name: str) -> Partition:
        """Returns the partition behind the split point of that name.

        It maps tensors as ``SplitPoint.head_inputs`` says to the model's outputs. A model of torch that computes in 16
        bits gives its outputs in float32.
        """
        with self._lock:
            return self._heads.get(self.split_point(name), self._make_head)

    @property
    def content(self) -> str:
        """Hexadecimal digits that identify the model's operations and weights; empty if not ``has_one_graph``.

        Raises:
            ConfigurationError: weights that were released cannot be read again.
        """
        return ""

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

    def kernels_before(self, name: str) -> tuple[KernelTraffic, ...]:
        """Returns the kernels of the partition before the split point of that name, in order.

        The bytes of a kernel are 0 if an engine keeps its weights and activations in memory of its own.
        """
        split_point = self.split_point(name)
        with self._lock:
            if split_point not in self._kernels:
                self._kernels[split_point] = self._find_kernels(split_point)
            return self._kernels[split_point]

    @abstractmethod
    def segments(self) -> tuple[tuple[Partition, ...], tuple[Partition, ...]]:
        """Returns the segments between neighbouring split points, as the backbone runs them and as the head does.

        Segments are never compiled.
        """

    def warm_up_sizes(self, batch_size: int) -> Sequence[int]:
        """Returns the batch sizes, up to ``batch_size``, that should run before frames come."""
        return sorted({1, batch_size})

    @property
    def head_engine(self) -> Engine:
        """The engine that runs the head."""
        return self._head_execution_config.engine

    @property
    def head_precision(self) -> Precision:
        """The precision in which the head computes."""
        return self._head_execution_config.precision

    @property
    @abstractmethod
    def _head_execution_config(self) -> ExecutionConfig:
        """How the head runs."""

    @property
    def note(self) -> str:
        """What a user should know about how the model runs, in sentences; empty if there is nothing."""
        return " ".join(self.entry.notes)

    @abstractmethod
    def _make_backbone(self, split_point: SplitPoint) -> Partition:
        """Makes the partition before a split point."""

    @abstractmethod
    def _make_head(self, split_point: SplitPoint) -> Partition:
        """Makes the partition behind a split point."""

    @abstractmethod
    def _find_kernels(self, split_point: SplitPoint) -> tuple[KernelTraffic, ...]:
        """Finds the kernels of the partition before a split point."""

    def _reset_caches(self) -> None:
        self._backbones = BackboneCache(self.device)
        self._heads = PartitionCache()
        self._kernels: dict[SplitPoint, tuple[KernelTraffic, ...]] = {}
