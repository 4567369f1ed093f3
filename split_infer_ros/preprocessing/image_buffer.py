"""Memory for the raw bytes of images on their way to a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from split_infer_ros.buffers.host_arrays import as_tensor, copy_into
from split_infer_ros.buffers.memory import Memory, Place
from split_infer_ros.buffers.memory_allocation import allocate_at
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.runtime.streams import Fence

if TYPE_CHECKING:
    from torch import Tensor

MB = 1e6
MIN_BUFFER_BYTES = 3 * 640 * 480
NUM_IMAGE_BUFFERS = 2  # per pre-processor: one is filled while the GPU reads the other


def image_buffer_bytes(policy: Policy, nbytes: int = MIN_BUFFER_BYTES) -> int:
    """Returns the bytes that a buffer for ``nbytes`` of images takes under a policy, on host and GPU together."""
    return policy.footprint_bytes(nbytes)


class ImageBuffer:
    """Memory for the raw bytes of a batch's images.

    It begins with ``MIN_BUFFER_BYTES``, and grows when a batch needs more.

    Args:
        place: the device and the memory policy.
        budget_bytes: memory that the buffer may take, on host and GPU together.

    Attributes:
        memory: the current memory.
        free: once this fence has passed, the CPU may write into the host's side again.
        unused: once this fence has passed, the GPU needs neither the host's side nor its own any more.
    """

    def __init__(self, place: Place, budget_bytes: float) -> None:
        self._place = place
        self._budget_bytes = budget_bytes
        self.memory = allocate_at(place, MIN_BUFFER_BYTES)
        self.free = self.unused = Fence()

    def gather(self, images: Sequence[Pixels], policy: Policy | None = None) -> tuple[Memory, int]:
        """Copies the bytes of all images into the memory, one image after the other.

        Before that, it waits until the GPU no longer reads the batch that the buffer held last.

        Args:
            images: images of any sizes.
            policy: the memory policy by which the GPU gets the images; None means the memory's own.

        Returns:
            The memory under that policy, and the number of bytes of all images.

        Raises:
            ConfigurationError: the images do not fit into the budget.
            OutOfMemory: the memory cannot be allocated.
        """
        total = sum(image.data.size for image in images)
        if self.memory.host.nbytes < total:
            self._grow(total, len(images))
        memory = self.memory.with_policy(policy or self.memory.policy)
        assert memory is not None, f"{self.memory} does not serve {policy}, and was to switch"
        # If the GPU reads the memory in place, no earlier batch may still need it, whichever policy that batch had.
        (self.free if memory.needs_copy else self.unused).wait()
        begin = 0
        for image in images:
            end = begin + image.data.size
            copy_into(memory.host[begin:end].reshape(image.data.shape), image.data)
            begin = end
        return memory, total

    def _grow(self, total: int, num_images: int) -> None:
        needed = image_buffer_bytes(self._place.policy, total)
        if needed > self._budget_bytes:
            raise ConfigurationError(
                f"The bytes of {num_images} images of this size take {needed * NUM_IMAGE_BUFFERS / MB:,.1f} MB, and "
                f"the memory_budget_mb has {self._budget_bytes * NUM_IMAGE_BUFFERS / MB:,.1f} left for them: take a "
                "smaller batch_size, smaller images or a larger budget."
            )
        self.unused.wait()  # the GPU may still be reading the memory that is freed now
        self.memory = allocate_at(self._place, total)


def to_device(memory: Memory, total: int) -> Tensor:
    """Gives the GPU the first ``total`` bytes of a memory, by a copy if the memory's policy needs one.

    Returns:
        The bytes as uint8 (total,) on the GPU. Only later work of the current stream may read them.
    """
    memory.give_to_device()
    if memory.needs_copy:
        copy_into(memory.device[:total], memory.host[:total])
    return as_tensor(memory.device[:total])
