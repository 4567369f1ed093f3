"""Makes partitions that read their weights while they run, if the settings say so.

Once a partition streams its weights, the model frees their memory. Each function looks at the settings first. It
imports the streaming code only if the settings ask for streaming, because that code needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.num_threads import max_threads
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.settings import WeightsSettings

if TYPE_CHECKING:
    from split_infer_ros.split.model import SplitModel
    from split_infer_ros.split.split_points import SplitPoint
    from split_infer_ros.weight_streaming.ring_memory import RingMemory
    from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition


def stream_backbone(
    model: SplitModel,
    split_point: SplitPoint,
    settings: WeightsSettings,
    *,
    batch_size: int,
    ring_memory: RingMemory | None = None,
    num_threads: int = 0,
) -> StreamedPartition | None:
    """Returns the backbone partition on streamed weights.

    Returns None if its weights stay in memory, or it has none. Packs the weights first if there is no packed file yet.
    Then frees the memory of the partition's weights.

    Args:
        model: the model that has the backbone.
        split_point: the split point where the backbone ends.
        settings: where weights are, and how much memory they may take.
        batch_size: size of a full batch. Weights are laid out for it.
        ring_memory: a ring on the CPU that partitions of several models share. Its size is the budget.
        num_threads: number of threads that run the backbone on a CPU; 0: one for each core.

    Raises:
        ConfigurationError: the file, budget or device does not allow it. The model's weights then stay in memory.
    """
    if _is_resident(model, settings):
        return None
    from split_infer_ros.split.partitions import backbone_of

    return _stream(
        model,
        settings,
        model.precision,
        ring_memory,
        extract=backbone_of,
        split_point=split_point,
        inputs=(TensorSpec("images", model.entry.image_shape, FLOAT32),),
        num_threads=(num_threads or max_threads()) if model.device.type == "cpu" else None,
        batch_size=batch_size,
    )


def stream_head(
    model: SplitModel, split_point: SplitPoint, settings: WeightsSettings, *, num_threads: int, batch_size: int
) -> StreamedPartition | None:
    """Returns the head partition on streamed weights on the CPU.

    Returns None if its weights stay in memory, or it has none. Packs the weights first if there is no packed file yet.
    Then frees the memory of the partition's weights.

    Args:
        model: the model that has the head.
        split_point: the split point where the head begins.
        settings: where weights are, and how much memory they may take.
        num_threads: number of threads that run the head.
        batch_size: the batch size for which weights are laid out.

    Raises:
        ConfigurationError: the file or budget does not allow it. The model's weights then stay in memory.
    """
    if _is_resident(model, settings):
        return None
    from split_infer_ros.split.partitions import head_of

    return _stream(
        model,
        settings,
        model.head_config.precision,
        extract=head_of,
        split_point=split_point,
        inputs=split_point.head_inputs,
        num_threads=num_threads,
        batch_size=batch_size,
    )


def pack_streamed(model: SplitModel, settings: WeightsSettings, *, num_threads: int, batch_size: int) -> None:
    """Packs a model's weights if they will be streamed, so that the partition opens faster.

    Args:
        model: the model that has the weights.
        settings: where weights are.
        num_threads: number of CPU threads that will run the partition.
        batch_size: the batch size for which weights are laid out.

    Raises:
        ConfigurationError: the weights cannot be packed, or the user's file has other weights.
    """
    if _is_resident(model, settings):
        return
    from split_infer_ros.weight_streaming.packed_weights import find_packed, streamable

    find_packed(streamable(model), settings.weights_file, num_threads=num_threads, batch_size=batch_size)


def _is_resident(model: SplitModel, settings: WeightsSettings) -> bool:
    return settings.weights_residency is Residency.RESIDENT or not model.network.has_weights


def _stream(
    model: SplitModel,
    settings: WeightsSettings,
    precision: Precision,
    ring_memory: RingMemory | None = None,
    **partition: Any,
) -> StreamedPartition | None:
    """Returns a partition on streamed weights, or None if it has none. ``partition`` has fields of ``PartitionSpec``.

    Raises:
        ConfigurationError: the partition computes in another precision than fp32; or as for ``stream_partition``.
    """
    from split_infer_ros.weight_streaming.packed_weights import streamable
    from split_infer_ros.weight_streaming.partition_spec import PartitionSpec
    from split_infer_ros.weight_streaming.partition_streaming import stream_partition

    if precision is not Precision.FP32:
        raise ConfigurationError(
            f"weights_residency {settings.weights_residency.value} is for a partition in fp32, and this one runs in "
            f"{precision.value}: take precision fp32, or weights_residency resident."
        )
    spec = PartitionSpec(model=model, network=streamable(model), **partition)
    return stream_partition(spec, settings, ring_memory)
