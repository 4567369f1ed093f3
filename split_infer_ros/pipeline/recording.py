"""Records the backbone of a plan as CUDA graphs, and says what their inputs take."""

from __future__ import annotations

import math

import torch

from split_infer_ros.buffers.memory_pool import MemoryPool
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.pipeline.compute import Backbone
from split_infer_ros.pipeline.cuda_graphs import GraphedBackbone
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.residency import Residency


def graph_input_bytes_of(model: SplitModel, settings: StageSettings) -> int:
    """Returns the bytes of one image in a graph's input; 0 if the settings let nothing be recorded."""
    is_recorded = model.device.type == "cuda" and settings.cuda_graphs
    is_recorded = is_recorded and settings.weights_residency is Residency.RESIDENT
    return math.prod(model.entry.image_shape) * model.dtype.itemsize if is_recorded else 0


@torch.inference_mode()
def record_backbone(
    backbone: Backbone, slots: SlotMemory, model: SplitModel, settings: StageSettings, *, memory: MemoryPool
) -> GraphedBackbone:
    """Records a backbone for all slots and batch sizes of a plan; see ``GraphedBackbone.record``."""
    shape = (settings.batch_size, *model.entry.image_shape)
    example = torch.zeros(shape, device=model.device, dtype=model.dtype)
    example = example.contiguous(memory_format=torch.channels_last)
    return GraphedBackbone.record(backbone, slots, settings.pool_slots, example, memory=memory)
