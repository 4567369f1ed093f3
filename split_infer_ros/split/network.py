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
    """What a model computes, and where it can be split. It makes parts of the model for a device and a config.

    Models at several places share a network, and with it the weights on the CPU.

    Args:
        entry: the model's entry in the catalogue.
        split_points: the split points in fp32, in order, from ``input`` to ``output``.
        lock: the lock that is held while a partition is made.

    Attributes:
        entry, split_points, lock: as given.
        kind: what the network is, for messages.
        native_engine: the engine that runs the network as it came, without exporting or converting it.
        weights_source: identifies the source of the weights; see the function of that name. Empty if only their values
            identify them.
        is_quantised: whether ``quantise`` made the weights, so that the network can compute in int8.
        has_one_graph: whether one graph serves all batch sizes, so that engines other than torch can take it.
        takes_batches: whether the network takes any number of images at once. If not, a batch runs in parts of a fixed
            size.
        takes_arrays: whether parts on a CPU take arrays and give arrays. Others take and give tensors.
        can_be_stacked: whether a ``StackedModel`` computes the same as this network.
    """

    kind = "a model of torch"
    native_engine = Engine.TORCH
    weights_source = ""
    is_quantised = False
    has_one_graph = True
    takes_batches = True
    takes_arrays = False
    can_be_stacked = False

    def __init__(self, entry: ModelEntry, split_points: tuple[SplitPoint, ...], lock: threading.RLock) -> None:
        self.entry, self.split_points, self.lock = entry, split_points, lock

    @property
    def default_split_point(self) -> str:
        """The split point that the catalogue's entry names, or else the last one before ``output``."""
        return self.entry.default_split_point or self.split_points[-2:][0].name

    def split_point(self, name: str) -> SplitPoint:
        """Returns the split point of that name, in fp32. ``default`` is the network's own.

        Raises:
            UnknownSplitPointError: the network has no such split point.
        """
        wanted = self.default_split_point if name == "default" else name
        return choose_split_point(self.split_points, wanted, self.entry.name)

    @property
    def content(self) -> str:
        """Hexadecimal digits that identify the operations and weights; empty if not ``has_one_graph``.

        Raises:
            ConfigurationError: weights that were released cannot be read again.
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
        """Returns how many parameters the network has, or its partition before the split point of that name."""

    def best_device(self) -> Device:
        """Returns the device on which the backbone should run if the user names none: the first GPU, else the CPU."""
        return Device("cuda:0") if num_gpus() else CPU

    @abstractmethod
    def fit(self, device: Device, config: ExecutionConfig | None) -> tuple[Network, ExecutionConfig]:
        """Finds out how a backbone computes on a device.

        Args:
            device: the device.
            config: how the user wants it to compute; None for the usual config.

        Returns:
            The network that computes there, which is this one unless it has no such precision, and its config.

        Raises:
            ConfigurationError: the network cannot run there or in this config.
        """

    @abstractmethod
    def head_config(self, device: Device, config: ExecutionConfig) -> ExecutionConfig:
        """Returns how the head runs on the CPU if the backbone runs on this device in this config."""

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
        """Makes the partition behind a split point, on the CPU. It takes float32 if the backbone computes in 16 bits.

        It then gives float32, too.
        """

    @abstractmethod
    def segments(
        self, config: ExecutionConfig, device: Device, *, takes_float32: bool = False
    ) -> tuple[Partition, ...]:
        """Makes the segments between neighbouring split points. They are never compiled.

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
        """Returns the bytes on the CPU of the weights of a backbone that was made, as far as torch has them."""
        return 0
