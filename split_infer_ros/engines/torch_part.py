"""Makes torch execute a part of a network: with packed, blocked or plain convolutions, or compiled."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn

from split_infer_ros.engines.execution_config import Compiler, Convolutions
from split_infer_ros.engines.fusion import fuse_convolutions
from split_infer_ros.engines.merged_layers import merge_layers
from split_infer_ros.engines.onednn_graph import BlockedPart, has_onednn_graphs
from split_infer_ros.engines.scheduled_convolutions import schedule_convolutions


def make_torch_part(part: fx.GraphModule, convolutions: Convolutions, compiler: Compiler) -> nn.Module:
    """Makes a part of a prepared network executable with torch.

    Args:
        part: maps tensors to a tuple of tensors. It may be changed in place. Modules that it shares with other parts
            are not changed.
        convolutions: how the part's convolutions run.
        compiler: what compiles the part.
    """
    executable: nn.Module = part
    if convolutions is Convolutions.PACKED:
        fuse_convolutions(part)
    elif convolutions is Convolutions.BLOCKED and _is_float32_on_cpu(part) and has_onednn_graphs():
        executable = BlockedPart(part)
    elif convolutions is Convolutions.TRITON:
        schedule_convolutions(part)
    elif convolutions is Convolutions.MERGED:
        merge_layers(part)
    elif convolutions is Convolutions.CONTIGUOUS:
        executable = ContiguousPart(part)
    return executable if compiler is Compiler.NONE else CompiledPart(executable, compiler)


def _is_float32_on_cpu(part: nn.Module) -> bool:
    """Returns whether all parameters are float32 on a CPU. False if the part has no parameters."""
    parameters = list(part.parameters())
    return bool(parameters) and all(each.device.type == "cpu" and each.dtype == torch.float32 for each in parameters)


class ContiguousPart(nn.Module):
    """A part with contiguous inputs and weights: one channel follows the other in memory."""

    def __init__(self, part: fx.GraphModule) -> None:
        super().__init__()
        self._part = copy.deepcopy(part).to(memory_format=torch.contiguous_format)

    def forward(self, *tensors: Tensor) -> Any:
        """Runs the part on contiguous tensors."""
        return self._part(*(tensor.contiguous() for tensor in tensors))


class CompiledPart(nn.Module):
    """A part that torch.compile compiles for a single image and for a full batch. Other batches run uncompiled.

    A batch larger than all earlier ones counts as a full batch. Sizes may therefore come in any order: graphs are
    recorded from the full batch down, and a warm-up begins with one image. Compiling takes half a minute or more. It
    happens while the pipeline warms up, never while frames flow.
    """

    def __init__(self, part: nn.Module, compiler: Compiler) -> None:
        super().__init__()
        self._part = part
        options: dict[str, Any] = {"freezing": True, "max_autotune": compiler is Compiler.INDUCTOR_AUTOTUNED}
        self._compiled = torch.compile(part, dynamic=False, options=options)
        self._compiled_sizes: set[int] = set()  # batch sizes

    def forward(self, *tensors: Tensor) -> Any:
        """Runs the part on tensors of shape (n, ...)."""
        size = len(tensors[0])
        if size == 1 or size > max(self._compiled_sizes, default=0):
            self._compiled_sizes.add(size)
        return self._compiled(*tensors) if size in self._compiled_sizes else self._part(*tensors)
