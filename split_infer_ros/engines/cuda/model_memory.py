"""The memory in which a plan's model computes on a GPU. If possible, it is of the plan's memory policy."""

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
    """The memory pools for those tensors of a plan that lie neither in slots nor in staging buffers.

    There are two pools, because one thread pre-processes a batch while another thread computes the batch before.

    Attributes:
        images: the pool for pre-processed images.
        activations: the pool for the backbone's activations. A recorded backbone uses the memory of its graph instead.
        note: a sentence that says why these tensors lie in device memory despite the plan's policy; otherwise empty.
    """

    images: MemoryPool
    activations: MemoryPool
    note: str = ""

    @classmethod
    def open(cls, place: Place, covers_model: bool) -> ModelMemory:
        """Makes the pools of a plan. The model's weights are not in them; the caller places them by ``policy``.

        Args:
            place: the plan's memory policy, and the backbone's device.
            covers_model: whether both pools should be of the plan's policy. If not, both are torch's common memory,
                and ``note`` is empty. If torch cannot allocate memory of the policy on this machine, both are torch's
                common memory too, and ``note`` says why.
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
        """The memory policy of the pools."""
        return self.activations.policy

    @property
    def bytes(self) -> int:
        """The bytes that torch has taken for ``images`` and ``activations``.

        0 if they lie in torch's common memory, because all models share it.
        """
        return self.images.bytes + self.activations.bytes


class PooledBackbone:
    """A backbone that allocates its activations in a pool. It serves callers that have no plan.

    Args:
        inner: the backbone that computes.
        pool: the pool for activations and results.

    Attributes:
        inner, pool: the arguments.
    """

    def __init__(self, inner: Backbone, pool: MemoryPool) -> None:
        self.inner = inner
        self.pool = pool

    def __call__(self, images: Values) -> Sequence[Values]:
        """Returns the features, each (n, ...), of a batch of images (n, 3, h, w)."""
        with self.pool.allocating():
            return self.inner(images)
