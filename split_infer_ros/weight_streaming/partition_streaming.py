"""Opens a partition of a torch model on streamed weights, and frees the memory that these weights took."""

from __future__ import annotations

import gc

from split_infer_ros.errors import ConfigurationError, StreamError
from split_infer_ros.runtime.heap import trim
from split_infer_ros.torch_graphs.module_state import state_of
from split_infer_ros.weight_streaming.opening import open_in_shared_ring, open_on_cpu, open_on_gpu
from split_infer_ros.weight_streaming.packed_weights import fetch_weights, find_packed
from split_infer_ros.weight_streaming.partition_spec import PartitionSpec
from split_infer_ros.weight_streaming.ring_memory import RingMemory
from split_infer_ros.weight_streaming.settings import WeightsSettings
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition


def stream_partition(
    spec: PartitionSpec, settings: WeightsSettings, ring_memory: RingMemory | None = None
) -> StreamedPartition | None:
    """Returns a partition on streamed weights, or None if it has no weights.

    Packs the weights first if there is no packed file yet. Then frees the memory of the partition's weights.

    Args:
        spec: the partition.
        settings: where weights are, and how much memory they may take.
        ring_memory: a ring on the CPU that partitions of several models share. None: the partition gets its own ring.

    Raises:
        ConfigurationError: the file, budget or device does not allow it. The model's weights then stay in memory.
    """
    path = find_packed(spec.network, settings.weights_file, num_threads=spec.num_threads, batch_size=spec.batch_size)
    try:
        packed = spec.open_packed(path)
        if not packed.step_blocks:
            return None
        gc.collect()  # traced graphs refer to themselves: their memory is given back before the ring is filled
        trim()
        if ring_memory is not None:
            streamed = open_in_shared_ring(packed, settings, ring_memory)
        elif spec.num_threads is not None:
            streamed = open_on_cpu(spec, settings, packed)
        else:
            streamed = open_on_gpu(spec, settings, packed)
    except (OSError, StreamError) as error:
        raise ConfigurationError(f"Weights cannot be streamed: {error}") from error
    frees_any = spec.network.graph.release(
        state_of(spec.graph).keys(),
        lambda names: fetch_weights(spec.network, path, num_threads=spec.num_threads, names=names),
    )
    spec.model.drop_partitions()
    if frees_any:
        gc.collect()  # traced graphs refer to themselves, and hold weights until collected
    trim()
    return streamed
