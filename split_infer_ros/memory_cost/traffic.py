"""Describes what the kernels of a backbone do with memory. Turns this into kernels of the overhead model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from split_infer_ros.memory_cost.task import Kernel


@dataclass(frozen=True, slots=True)
class KernelTraffic:
    """The bytes that one kernel of a backbone reads and writes.

    Attributes:
        input_bytes: the bytes of activations that the kernel reads, for one image.
        output_bytes: the bytes of activations that the kernel writes, for one image.
        weight_bytes: the bytes of weights that the kernel reads, for any number of images.
        fresh_bytes: the part of ``input_bytes`` that the kernel before this one has just written.
    """

    input_bytes: int = 0
    output_bytes: int = 0
    weight_bytes: int = 0
    fresh_bytes: int = 0


def kernels_within(traffic: Sequence[KernelTraffic], count: int, cache_bytes: int) -> tuple[Kernel, ...]:
    """Returns the kernels of a batch if all weights and activations are in memory of the policy.

    The cache holds what was written last. So a kernel finds what the kernel before it wrote, as far as the cache holds
    it.

    Args:
        traffic: the traffic of each kernel, in order.
        count: how many images the batch has.
        cache_bytes: the size of the GPU's L2 cache in bytes.
    """
    return tuple(
        Kernel(
            count * (each.input_bytes + each.output_bytes) + each.weight_bytes,
            written_bytes=count * each.output_bytes,
            cached_bytes=min(count * each.fresh_bytes, cache_bytes),
        )
        for each in traffic or [KernelTraffic()]
    )


def kernels_outside(traffic: Sequence[KernelTraffic]) -> tuple[Kernel, ...]:
    """Returns the kernels of a model if its weights and activations are not in memory of the policy.

    They are one kernel that accesses no bytes, with as many launches as the model has kernels, at least one.
    """
    return (Kernel(0, launches=max(1, len(traffic))),)
