"""Records the backbone of a plan as CUDA graphs, and says which backbones can be recorded and what inputs take."""

from __future__ import annotations

import math

import torch
from torch import fx, nn

from split_infer_ros.buffers.memory_pool import MemoryPool
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.operator_placement.placed_graph import copy_to
from split_infer_ros.server.execution.compute import Backbone
from split_infer_ros.server.execution.cuda_graphs import GraphedBackbone
from split_infer_ros.server.memory.model_memory import PooledBackbone
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition


def can_be_recorded(backbone: Backbone) -> bool:
    """Returns whether a backbone on a GPU may be recorded as a CUDA graph.

    Another engine than torch waits for its inputs. Streamed weights come from the CPU, and so do the results of
    operators that are placed there. Trying to record any of these would only fail.
    """
    plain = backbone.inner if isinstance(backbone, PooledBackbone) else backbone
    if isinstance(plain, StreamedPartition):
        return False
    modules = plain.modules() if isinstance(plain, nn.Module) else ()
    return not any(isinstance(module, EnginePart) or _has_copies(module) for module in modules)


def _has_copies(module: nn.Module) -> bool:
    """Returns whether a module is a placed graph with copies between the processors."""
    return isinstance(module, fx.GraphModule) and any(node.target is copy_to for node in module.graph.nodes)


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
