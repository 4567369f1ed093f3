"""What a model computes, wherever it runs: what models of torch and ONNX models have in common."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.memory_cost.traffic import KernelTraffic
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.runtime.device import CPU, Device
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.split.split_points import SplitPoint, choose_split_point
from split_infer_ros.split.torch_needs import num_gpus


class Network(ABC):
    """What a model computes, and where it can be split. It makes partitions for a device and an execution config.

    Several ``SplitModel`` objects, on different devices, share one network and its weights on the CPU.

    Args:
        entry: the model's ``ModelEntry``.
        split_points: the split points in fp32, in order, from ``input`` to ``output``.
        lock: the lock that is held while a partition is made.

    Attributes:
        entry, split_points, lock: as given.
        kind: what the network is, in words for messages.
        native_engine: the engine that runs the network as it came, without exporting or converting it.
        weights_source: a text that identifies where the weights came from; see the function ``weights_source``. Empty
            if only the values of the weights identify them.
        is_quantised: whether ``quantise`` made the weights, so that the network can compute in int8.
        has_one_graph: whether one graph serves all batch sizes, so that engines other than torch can take it.
        takes_batches: whether the network takes any number of images at once. If not, a batch runs in parts of a fixed
            size.
        takes_arrays: whether partitions on a CPU take and give NumPy arrays. Otherwise they take and give tensors.
        can_be_stacked: whether a ``StackedModel`` computes the same as this network.
        has_weights: whether there are weights, which may be streamed.
    """

    kind = "a model of torch"
    native_engine = Engine.TORCH
    weights_source = ""
    is_quantised = False
    has_one_graph = True
    takes_batches = True
    takes_arrays = False
    can_be_stacked = False
    has_weights = True

    def __init__(self, entry: ModelEntry, split_points: tuple[SplitPoint, ...], lock: threading.RLock) -> None:
        self.entry, self.split_points, self.lock = entry, split_points, lock

    @property
    def default_split_point(self) -> str:
        """The name of the split point that the model's entry names, or else of the last one before ``output``."""
        return self.entry.default_split_point or self.split_points[-2:][0].name

    def split_point(self, name: str) -> SplitPoint:
        """Returns the split point of that name, in fp32. ``default`` stands for ``default_split_point``.

        Raises:
            UnknownSplitPointError: the network has no such split point.
        """
        wanted = self.default_split_point if name == "default" else name
        return choose_split_point(self.split_points, wanted, self.entry.name)

    @property
    def content(self) -> str:
        """Hexadecimal digits that identify the operations and weights; empty if ``has_one_graph`` is False.

        Raises:
            ConfigurationError: the CPU's weights were released, and cannot be read again.
        """
        return ""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that identify the operations, their order and their shapes."""

    @property
    def note(self) -> str:
        """What a user should know about how the network runs, in sentences; empty if there is nothing."""
        return " ".join(self.entry.notes)

    @abstractmethod
    def num_parameters(self, before: str | None = None) -> int:
        """Returns the number of parameters of the network, or only of a backbone.

        Args:
            before: the name of the backbone's split point; None for the whole network.
        """

    def best_device(self) -> Device:
        """Returns the device on which the backbone should run if the user names none: the first GPU, else the CPU."""
        return Device("cuda:0") if num_gpus() else CPU

    @abstractmethod
    def fit(self, device: Device, config: ExecutionConfig | None) -> tuple[Network, ExecutionConfig]:
        """Finds out how a backbone computes on a device.

        Args:
            device: the device.
            config: how the user wants the backbone to compute; None for the network's usual config.

        Returns:
            The network that computes, and its config. It is this network, except for a quantised network and a config
            of another precision: then it is the network that was quantised.

        Raises:
            ConfigurationError: the network cannot run on the device or in this config.
        """

    @abstractmethod
    def head_config(self, device: Device, config: ExecutionConfig) -> ExecutionConfig:
        """Returns how the head runs on the CPU if the backbone runs on ``device`` in ``config``."""

    @abstractmethod
    def backbone(
        self, split_point: SplitPoint, config: ExecutionConfig, device: Device, *, keeps_copy: bool = True
    ) -> Partition:
        """Makes the partition before a split point.

        Args:
            split_point: the split point, in any precision.
            config: how the partition runs.
            device: where it runs.
            keeps_copy: whether the CPU keeps its copy of weights that the partition then has on a GPU.
        """

    @abstractmethod
    def head(self, split_point: SplitPoint, config: ExecutionConfig) -> Partition:
        """Makes the partition behind a split point, on the CPU.

        Even if ``config`` says 16 bits, the partition takes and gives float32.
        """

    @abstractmethod
    def segments(
        self, config: ExecutionConfig, device: Device, *, takes_float32: bool = False
    ) -> tuple[Partition, ...]:
        """Makes the segments between neighbouring split points, in order. They are never compiled.

        Args:
            config: how they run.
            device: where they run.
            takes_float32: whether they take and give float32 where the config says 16 bits, as a head does.
        """

    @abstractmethod
    def kernels_before(self, split_point: SplitPoint, config: ExecutionConfig) -> tuple[KernelTraffic, ...]:
        """Returns the kernels of the partition before a split point, in order.

        The bytes of a kernel are 0 if an engine keeps its weights and activations in memory of its own.
        """

    def host_weight_bytes(self, split_point: SplitPoint) -> int:
        """Returns how many bytes torch keeps on the CPU for a backbone's weights. Other engines' copies do not count.

        Args:
            split_point: the split point of a backbone that was made before.
        """
        return 0
