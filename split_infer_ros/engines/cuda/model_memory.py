"""The memory in which a plan's model computes on a GPU. It follows the plan's memory policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from split_infer_ros.buffers.host_arrays import Values
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.memory_pool import MemoryPool
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.engines.compute import Backbone
from split_infer_ros.errors import ConfigurationError


@dataclass(frozen=True, slots=True, eq=False)
class ModelMemory:
    """The memory of a plan's tensors that are not in slots or buffers.

    There are two pools, because one thread pre-processes a batch while another thread computes the previous batch.

    Attributes:
        images: pool for pre-processed images.
        activations: pool for the backbone's activations, unless the backbone is recorded.
        note: a sentence that says why these tensors do not follow the plan's policy; empty if they do.
    """

    images: MemoryPool
    activations: MemoryPool
    note: str = ""

    @classmethod
    def open(cls, place: Place, covers_model: bool) -> ModelMemory:
        """Opens memory for a plan.

        Args:
            place: the plan's policy, and the backbone's device.
            covers_model: whether weights and activations follow the policy. If not, or if torch cannot use memory of
                the policy here, they lie in torch's common memory. In the second case, ``note`` says so.
        """
        note = ""
        if covers_model:
            try:
                return cls(MemoryPool(place.policy, place.device), MemoryPool(place.policy, place.device))
            except ConfigurationError as error:
                note = f"Weights and activations lie in device memory under memory_policy {place.policy.value}: {error}"
        common = MemoryPool(Policy.HOST if place.device.type == "cpu" else Policy.DEVICE, place.device)
        return cls(common, common, note)

    @property
    def policy(self) -> Policy:
        """The policy that these tensors follow."""
        return self.activations.policy

    @property
    def bytes(self) -> int:
        """The memory that torch has taken for both pools; 0 for torch's common memory, which all models share."""
        return self.images.bytes + self.activations.bytes


class PooledBackbone:
    """A backbone that allocates its activations in a pool, for callers that know no plan.

    Args:
        inner: the backbone.
        pool: the pool for activations and results.

    Attributes:
        inner, pool: the arguments.
    """

    def __init__(self, inner: Backbone, pool: MemoryPool) -> None:
        self.inner = inner
        self.pool = pool

    def __call__(self, images: Values) -> Sequence[Values]:
        """Maps (N, 3, h, w) to a tuple of (N, ...)."""
        with self.pool.allocating():
            return self.inner(images)
