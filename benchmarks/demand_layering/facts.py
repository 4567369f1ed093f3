"""Counts the bytes of a model in each residency, and compares its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from benchmarks.demand_layering import child
from benchmarks.demand_layering.claims import ModelFacts
from benchmarks.demand_layering.plan import PlannedModel
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition


def facts_of(planned: PlannedModel, partitions: Mapping[str, child.Partition]) -> ModelFacts:
    """Counts bytes, and compares the results of each residency with those of resident weights."""
    packed, images = planned.packed, planned.images
    with torch.inference_mode():
        expected = partitions[child.RESIDENT](images)
        is_equal = {
            residency: same(partition(images), expected, bits=residency != child.OFFLOADED)
            for residency, partition in partitions.items()
        }
    streamed_bytes = sum(packed.block_sizes)
    resident_blocks = planned.chosen.memory_plan.resident_blocks
    resident_bytes = {child.RESIDENT: streamed_bytes, child.AUTO: sum(packed.block_sizes[:resident_blocks])}
    return ModelFacts(
        name=planned.name,
        weight_bytes=streamed_bytes + packed.kept_bytes,
        streamed_bytes=streamed_bytes,
        max_tile_bytes=max(piece.nbytes for own in packed.pieces.values() for piece in own),
        max_block_bytes=max(packed.block_sizes),
        num_threads=torch.get_num_threads(),
        memory_bytes={
            residency: partition.weight_bytes
            for residency, partition in partitions.items()
            if isinstance(partition, StreamedPartition)
        },
        read_bytes={residency: streamed_bytes - resident_bytes.get(residency, 0) for residency in partitions},
        is_equal=is_equal,
    )


def same(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], bits: bool = True) -> bool:
    """Returns whether two results are equal.

    Args:
        found, expected: the tensors of the two results.
        bits: whether they must be equal bit for bit. If not, they may differ by 1e-3 of the largest value.
    """
    pairs = zip(found, expected, strict=True)
    return all(torch.equal(a, b) if bits else bool((a - b).abs().max() <= 1e-3 * b.abs().max()) for a, b in pairs)
