"""Records the backbone of a plan as CUDA graphs. Tells which backbones can be recorded, and how large an input is."""

from __future__ import annotations

import math

from split_infer_ros.buffers.host_arrays import as_tensor
from split_infer_ros.buffers.memory_pool import MemoryPool
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.engines.compute import Backbone
from split_infer_ros.engines.cuda.cuda_graphs import GraphedBackbone
from split_infer_ros.engines.cuda.model_memory import PooledBackbone
from split_infer_ros.engines.engine_part import has_engine_part
from split_infer_ros.runtime.inference import inference_mode
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.model import SplitModel
from split_infer_ros.torch_graphs.module_state import is_module
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition


def can_be_recorded(backbone: Backbone) -> bool:
    """Returns whether a backbone on a GPU may be recorded as a CUDA graph.

    An engine other than torch waits for its inputs. Streamed weights come from the CPU, and so do the results of
    operators that are placed there. An attempt to record any of these would fail.
    """
    plain = backbone.inner if isinstance(backbone, PooledBackbone) else backbone
    if isinstance(plain, StreamedPartition) or has_engine_part(plain):
        return False
    if not is_module(plain):  # only modules have placed operators
        return True
    from split_infer_ros.operator_placement.placed_graph import has_copies  # only here: it imports torch

    return not has_copies(plain)


def graph_input_bytes_of(model: SplitModel, settings: StageSettings) -> int:
    """Returns the bytes of one image in a graph's input; 0 if nothing is recorded with these settings."""
    is_recorded = model.device.type == "cuda" and settings.cuda_graphs
    is_recorded = is_recorded and settings.weights_residency is Residency.RESIDENT
    return math.prod(model.entry.image_shape) * model.dtype.itemsize if is_recorded else 0


def record_backbone(
    backbone: Backbone, slots: SlotMemory, model: SplitModel, settings: StageSettings, *, memory: MemoryPool
) -> GraphedBackbone:
    """Records a backbone as CUDA graphs for all slots and batch sizes of a plan; see ``GraphedBackbone.record``.

    Args:
        backbone: the backbone of the plan.
        slots: the slots into which the graphs write features.
        model: the model that has the backbone.
        settings: the settings of the plan.
        memory: the memory of the graphs' images. The graphs get memory of the same policy.

    Raises:
        torch.OutOfMemoryError: the device has no room for the graphs.
        CaptureError: the backbone cannot be recorded.
    """
    with inference_mode():
        example = as_tensor(model.blank_images(settings.batch_size))
        return GraphedBackbone.record(backbone, slots, settings.pool_slots, example, memory=memory)
