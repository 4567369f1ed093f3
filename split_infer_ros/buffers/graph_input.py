"""The memory between pre-processing and recorded graphs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from split_infer_ros.buffers.memory_pool import MemoryPool
from split_infer_ros.runtime.streams import Fence

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True, eq=False)
class GraphInput:
    """The memory from which graphs read their images.

    Attributes:
        images: the images, (batch_size, 3, h, w).
        unused: the fence after which no launched graph reads the memory any more.
    """

    images: Tensor
    unused: Fence = field(default_factory=Fence)

    @classmethod
    def like(cls, example: Tensor, memory: MemoryPool) -> GraphInput:
        """Creates an input of the shape, strides and precision of an example."""
        import torch  # only here, because only a GPU records graphs

        with memory.allocating():
            return cls(example.clone(memory_format=torch.preserve_format))
