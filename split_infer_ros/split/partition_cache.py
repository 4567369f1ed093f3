"""Keeps the partitions of a model that were used last, because a split point that moves may come back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

from split_infer_ros.buffers.memory_pool import MemoryPool
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.pool_allocators import POOLED
from split_infer_ros.runtime.device import Device
from split_infer_ros.split.split_points import SplitPoint
from split_infer_ros.torch_graphs.module_state import state_of

MAX_PARTITIONS = 4  # kept by each cache

Partition: TypeAlias = Callable[..., Any]
"""A part of a model that can be run: it maps values to a tuple of values."""


class PartitionCache:
    """Backbones or heads of one model. The caller of each method holds the model's lock.

    Attributes:
        partitions: the kept partitions by split point. The one that was asked for last comes last.
    """

    def __init__(self) -> None:
        self.partitions: OrderedDict[SplitPoint, Partition] = OrderedDict()

    def get(self, split_point: SplitPoint, make: Callable[[SplitPoint], Partition]) -> Partition:
        """Returns the partition of a split point. If it is not kept, ``make`` makes it.

        The ``MAX_PARTITIONS`` partitions that were asked for last are kept.
        """
        if split_point not in self.partitions:
            self.partitions[split_point] = make(split_point)
        self.partitions.move_to_end(split_point)
        while len(self.partitions) > MAX_PARTITIONS:
            self.partitions.popitem(last=False)
        return self.partitions[split_point]

    def clear(self) -> None:
        """Drops all partitions from the cache. A caller that uses a partition may go on with it."""
        self.partitions.clear()


class BackboneCache(PartitionCache):
    """Backbones of one model, and the memory in which they keep their weights.

    Args:
        device: where the backbones run.
    """

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device
        self._weights_pool = MemoryPool(Policy.HOST, device)

    @property
    def keeps_copy(self) -> bool:
        """Whether the CPU keeps its copy of a backbone's weights. Under ``managed`` and ``pinned``, it does not."""
        return self._weights_pool.policy not in POOLED

    def use_memory(self, policy: Policy) -> None:
        """Sets the memory policy for weights on a GPU, for all backbones that are made from now on.

        Backbones with weights under another policy are dropped from the cache.

        Raises:
            ConfigurationError: torch cannot allocate memory of the policy on this machine.
        """
        current = self._weights_pool.policy
        if policy is not current and POOLED & {policy, current}:
            self._weights_pool = MemoryPool(policy, self._device)
            self.clear()

    def get(self, split_point: SplitPoint, make: Callable[[SplitPoint], Partition]) -> Partition:
        """Returns the backbone of a split point. If it is not kept, makes it by ``make``, with the current policy."""
        with self._weights_pool.allocating():
            return super().get(split_point, make)

    def weight_bytes(self) -> int:
        """Returns how many bytes the weights of all kept backbones take on a GPU; 0 on a CPU."""
        if self._device.type != "cuda":
            return 0
        from split_infer_ros.split.device_weights import bytes_of  # only here: weights on a GPU belong to torch

        return self._weights_pool.bytes or bytes_of(
            tensor for backbone in self.partitions.values() for tensor in state_of(backbone).values()
        )
