"""A model that is split on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from split_infer_ros.buffers.host_arrays import Values
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.memory_cost.traffic import KernelTraffic
from split_infer_ros.preprocessing.loaded_batch import BatchForm
from split_infer_ros.runtime.device import CPU, Device
from split_infer_ros.split.network import Network
from split_infer_ros.split.partition_cache import BackboneCache, Partition, PartitionCache
from split_infer_ros.split.split_points import SplitPoint


class SplitModel:
    """A network with its backbone on one device, and the partitions that were made so far. The head runs on the CPU.

    Args:
        network: what the model computes.
        device: where the backbone runs.
        execution_config: how both partitions run, as far as their device allows; None for the network's usual config.

    Attributes:
        network: the network that runs. It is the given one, except for a quantised network with a config of another
            precision: then it is the network in float32 that was quantised.
        entry: the model's ``ModelEntry``.
        image_shape: (C, H, W) of an image that the backbone takes.
        device: as given.
        execution_config: how the backbone runs.
        head_config: how the head runs.
        precision: the precision in which the backbone computes.
        dtype: the dtype of the backbone's images, and of all features that follow the precision; see
            ``SplitPoint.in_precision``.
        split_points: the split points in order, from ``input`` to ``output``.
        takes_arrays: whether the backbone takes arrays and gives arrays. Otherwise it takes and gives tensors on its
            device.
        batch_form: the form in which the backbone takes a batch.

    Raises:
        ConfigurationError: the network cannot run on the device or in this config. A network that was not quantised
            cannot run in int8: it would run in float32.
    """

    def __init__(self, network: Network, device: Device = CPU, execution_config: ExecutionConfig | None = None) -> None:
        self.network, config = network.fit(device, execution_config)
        self.entry, self.image_shape = self.network.entry, self.network.entry.image_shape
        if config.precision is Precision.INT8 and not self.network.is_quantised:
            raise ConfigurationError(
                f"{self.entry.name} is {self.network.kind} and not quantised, so it cannot run in int8 as it is: load "
                "it with precision int8, which reads what `split_infer_ros quantise` made of it."
            )
        self.device, self.execution_config = device, config
        self.head_config = self.network.head_config(device, config)
        self.precision, self.dtype = config.precision, config.boundary_dtype
        self.split_points = tuple(point.in_precision(self.dtype) for point in self.network.split_points)
        self.takes_arrays = self.network.takes_arrays and device.type == "cpu"
        self.batch_form = BatchForm(self.dtype, config.engine.reads_channels_last, self.takes_arrays)
        self._backbones, self._heads = BackboneCache(device), PartitionCache()
        self._kernels: dict[SplitPoint, tuple[KernelTraffic, ...]] = {}

    def placed(self, device: Device, execution_config: ExecutionConfig | None = None) -> SplitModel:
        """Returns the same model with its backbone on another device or in another execution config.

        Both models share the weights on the CPU. A model of torch keeps its folding of batch norms, because batch norms
        are folded before the network is split.

        Args:
            device: where the new model's backbone runs.
            execution_config: how both partitions run; None for this model's config.

        Raises:
            ConfigurationError: the model cannot run on the device or in this config.
        """
        return SplitModel(self.network, device, execution_config or self.execution_config)

    def with_threads(self, num_threads: int) -> SplitModel:
        """Returns the same model with another number of threads for its backbone; 0: one for each core.

        A backbone on a GPU has no threads, so it stays as it is.
        """
        if self.device.type != "cpu" or num_threads == self.execution_config.threads:
            return self
        return self.placed(self.device, replace(self.execution_config, threads=num_threads))

    @property
    def engine_text(self) -> str:
        """What runs the backbone, for reports: an engine with its provider."""
        return self.execution_config.engine_text

    @property
    def can_be_stacked(self) -> bool:
        """Whether a ``StackedModel`` can include this model. False for subclasses, which may compute something else."""
        return type(self) is SplitModel and self.network.can_be_stacked

    def use_memory(self, policy: Policy) -> None:
        """Sets the memory policy for weights on a GPU, for all backbones that are made from now on.

        Backbones with weights under another policy are dropped from the cache. A caller that uses such a backbone may
        go on with it.

        Raises:
            ConfigurationError: torch cannot allocate memory of the policy on this machine.
        """
        with self.network.lock:
            self._backbones.use_memory(policy)

    def weight_bytes(self, name: str) -> int:
        """Returns the bytes of all backbones' weights on their device, plus the CPU's copy of one backbone's weights.

        Under ``managed`` and ``pinned``, the bytes on the device are what torch's allocator has taken. Engines other
        than torch keep weights of their own, which are not counted.

        Args:
            name: the split point of that one backbone, which was made before.
        """
        with self.network.lock:
            return self._backbones.weight_bytes() + self.network.host_weight_bytes(self.split_point(name))

    def blank_images(self, batch_size: int) -> Values:
        """Returns black images (batch_size, C, H, W): an array or a tensor, whichever the backbone takes."""
        shape = (batch_size, *self.image_shape)
        if self.takes_arrays:
            return np.zeros(shape, self.dtype)
        return self.execution_config.blank_images(shape, self.device)

    def blank_frame(self) -> Any:
        """Returns what a frame may hold, for trials before frames come: a black image."""
        return Pixels.blank()

    def split_point(self, name: str) -> SplitPoint:
        """Returns the split point of that name, in the backbone's precision. ``default`` names the network's default.

        Raises:
            UnknownSplitPointError: the model has no such split point.
        """
        return self.split_points[self.network.split_points.index(self.network.split_point(name))]

    def backbone(self, name: str) -> Partition:
        """Returns the partition before the split point of that name.

        The partition maps images (N, C, H, W) of ``dtype`` on ``device`` to the tensors that cross at the split point.
        """

        def make(split_point: SplitPoint) -> Partition:
            return self.network.backbone(
                split_point, self.execution_config, self.device, keeps_copy=self._backbones.keeps_copy
            )

        with self.network.lock:
            return self._backbones.get(self.split_point(name), make)

    def head(self, name: str) -> Partition:
        """Returns the partition behind the split point of that name.

        The partition maps the tensors that ``SplitPoint.head_inputs`` describes to the model's outputs. A model of
        torch that computes in 16 bits gives its outputs in float32.
        """
        with self.network.lock:
            return self._heads.get(
                self.split_point(name), lambda split_point: self.network.head(split_point, self.head_config)
            )

    def drop_partitions(self) -> None:
        """Drops all partitions from the caches. A caller that uses a partition may go on with it.

        Weight streaming calls this after it has released the CPU's weights: a cached partition would keep them in
        memory.
        """
        with self.network.lock:
            self._backbones.clear()
            self._heads.clear()

    def close(self) -> None:
        """Ends what the model has started for itself. A network has started nothing."""

    def segments(self) -> tuple[tuple[Partition, ...], tuple[Partition, ...]]:
        """Returns the segments between neighbouring split points as the backbone runs them, then as the head runs them.

        Segments are never compiled.
        """
        backbones = self.network.segments(self.execution_config, self.device)
        return backbones, self.network.segments(self.head_config, CPU, takes_float32=True)

    def kernels_before(self, name: str) -> tuple[KernelTraffic, ...]:
        """Returns the kernels of the partition before the split point of that name, in order.

        The bytes of a kernel are 0 if an engine keeps its weights and activations in memory of its own.
        """
        split_point = self.split_point(name)
        with self.network.lock:
            if split_point not in self._kernels:
                self._kernels[split_point] = self.network.kernels_before(split_point, self.execution_config)
            return self._kernels[split_point]

    def warm_up_sizes(self, batch_size: int) -> Sequence[int]:
        """Returns the batch sizes, up to ``batch_size``, that should run before frames come.

        If one graph serves all sizes, these are 1 and ``batch_size``. Otherwise they are all sizes, because each size
        has a graph that is traced when the size first runs.
        """
        return sorted({1, batch_size}) if self.network.has_one_graph else range(1, batch_size + 1)
