"""In what form a network is run: ways that give the same results, but for rounding, and differ in speed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from split_infer_ros.engines.fusion import fuse_convolutions
from split_infer_ros.engines.onednn_graph import Blocked, can_be_blocked
from split_infer_ros.engines.scheduled_convolutions import schedule_convolutions
from split_infer_ros.vision_ops.implementations import ImplementationChoice, use_implementation

CONVOLUTIONS = ("packed", "blocked", "channels_last", "contiguous", "triton")
PACKED, BLOCKED, CHANNELS_LAST, CONTIGUOUS, TRITON = CONVOLUTIONS
EAGER, INDUCTOR, AUTOTUNED = COMPILERS = ("none", "inductor", "inductor_autotuned")


@dataclass(frozen=True, slots=True)
class ExecutionConfig:
    """How a network is run.

    Attributes:
        convolutions: ``packed``: channels last, weights packed, with the activation in the same pass (on a CPU);
            ``blocked``: in oneDNN's layouts from one to the next (on a CPU); ``channels_last`` or ``contiguous``: as
            torch runs them in that layout; ``triton``: depthwise and 1x1 ones by kernels of our own where these were
            measured to be faster (on a GPU). Where that cannot be had, channels last.
        folding: batch norms are folded into convolutions.
        compiler: ``none``; ``inductor``: torch.compile with frozen weights; ``inductor_autotuned``: so that it also
            tries kernels.
        operators: which form those of vision_ops take on a GPU: ``measured``, ``plain`` or ``triton``.
        segments: where not the same everywhere: (convolutions, split point at which they end) in order; the last
            ends at ``output``.
    """

    convolutions: str = PACKED
    folding: bool = True
    compiler: str = EAGER
    operators: str = ImplementationChoice.MEASURED.value
    segments: tuple[tuple[str, str], ...] = ()


def in_form(part: fx.GraphModule, convolutions: str, compiler: str) -> nn.Module:
    """A part of a prepared network, which is taken over, as it is to be run; modules that it shares stay as they are.

    Args:
        part: tensors to a tuple of tensors.
        convolutions, compiler: as in ``ExecutionConfig``.
    """
    laid_out: nn.Module = part
    if convolutions == PACKED:
        fuse_convolutions(part)
    elif convolutions == BLOCKED and _is_for_cpu(part) and can_be_blocked():
        laid_out = Blocked(part)
    elif convolutions == TRITON:
        schedule_convolutions(part)
    elif convolutions == CONTIGUOUS:
        laid_out = Contiguous(part)
    return laid_out if compiler == EAGER else Compiled(laid_out, compiler)


def _is_for_cpu(part: nn.Module) -> bool:
    parameters = list(part.parameters())
    return bool(parameters) and all(each.device.type == "cpu" and each.dtype == torch.float32 for each in parameters)


class Contiguous(nn.Module):
    """A part whose images, features and weights lie channel by channel."""

    def __init__(self, part: fx.GraphModule) -> None:
        super().__init__()
        self._part = copy.deepcopy(part).to(memory_format=torch.contiguous_format)

    def forward(self, *tensors: Tensor) -> Any:
        """As the part."""
        return self._part(*(tensor.contiguous() for tensor in tensors))


class Choosing(nn.Module):
    """A part whose operators take a form that was chosen for them."""

    def __init__(self, part: nn.Module, operators: str) -> None:
        super().__init__()
        self._part, self._operators = part, ImplementationChoice(operators)

    def forward(self, *tensors: Tensor) -> Any:
        """As the part."""
        with use_implementation(self._operators):
            return self._part(*tensors)


class Chain(nn.Module):
    """Parts in order, each given what the one before gives."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self._parts = nn.ModuleList(parts)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """As one part."""
        for part in self._parts:
            tensors = part(*tensors)
        return tensors


class Compiled(nn.Module):
    """A part that torch.compile makes code for, at a single image and at a full batch; others are run as they are.

    A full batch is one larger than any before. So the order of sizes does not matter: graphs are recorded from the full
    batch down, and a warm-up begins with one image. Compiling takes half a minute and more: it is done while the
    pipeline warms up, never while frames flow.
    """

    def __init__(self, part: nn.Module, compiler: str) -> None:
        super().__init__()
        self._part = part
        options: dict[str, Any] = {"freezing": True, "max_autotune": compiler == AUTOTUNED}
        self._compiled = torch.compile(part, dynamic=False, options=options)
        self._sizes: set[int] = set()  # of batches for which there is code

    def forward(self, *tensors: Tensor) -> Any:
        """As the part, of tensors (n, ...)."""
        size = len(tensors[0])
        if size == 1 or size > max(self._sizes, default=0):
            self._sizes.add(size)
        return self._compiled(*tensors) if size in self._sizes else self._part(*tensors)
