"""The memory through which pre-processing passes images to recorded CUDA graphs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from split_infer_ros.buffers.memory_pool import MemoryPool
from split_infer_ros.runtime.streams import Fence

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True, eq=False)
class GraphInput:
    """The memory from which recorded CUDA graphs read their images.

    Attributes:
        images: the images, (batch_size, 3, h, w), in the precision of the model's input.
        unused: the fence after which no launched graph reads the memory any more.
    """

    images: Tensor
    unused: Fence = field(default_factory=Fence)

    @classmethod
    def like(cls, example: Tensor, memory: MemoryPool) -> GraphInput:
        """Returns a new input with the shape, strides, precision and values of an example.

        Args:
            example: images, (batch_size, 3, h, w).
            memory: the pool in which the new input lies.
        """
        import torch  # only here, because only a GPU records graphs

        with memory.allocating():
            return cls(example.clone(memory_format=torch.preserve_format))
