"""Depthwise and 1x1 convolutions on a GPU: cuDNN's, or a template's where that was measured to be faster (§3.2.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from split_infer_ros.search.space import Config
from split_infer_ros.vision_ops.fastest import PLAIN, TRITON, fastest
from split_infer_ros.vision_ops.launchable import depthwise_objection, pointwise_objection
from split_infer_ros.vision_ops.schedules import DEPTHWISE, POINTWISE, best_schedule, may_search

KINDS = (torch.float32, torch.float16, torch.bfloat16)


def operator_of(convolution: nn.Module) -> str | None:
    """Which template it is a case of; None if of none."""
    c = convolution
    if type(c) is not nn.Conv2d or c.padding_mode != "zeros" or isinstance(c.padding, str):
        return None
    if c.weight.dtype not in KINDS or any(len(set(pair)) > 1 for pair in (c.kernel_size, c.stride, c.padding)):
        return None
    if c.groups == 1 and (c.kernel_size[0], c.stride[0], c.padding[0]) == (1, 1, 0):
        return POINTWISE
    if c.groups == c.in_channels == c.out_channels > 1 and c.dilation == (1, 1):
        return DEPTHWISE
    return None


class ScheduledConv2d(nn.Module):
    """A convolution that ``operator_of`` knows, its results clamped; both as they are now.

    Args:
        convolution: for float32, float16 or bfloat16; what it gives stays on its device.
        low, high: to which results are clamped.
    """

    def __init__(self, convolution: nn.Conv2d, low: float = float("-inf"), high: float = float("inf")) -> None:
        super().__init__()
        operator = operator_of(convolution)
        assert operator is not None
        self._operator, self._plain = operator, convolution
        self._low, self._high = low, high
        self._kernel, self._stride, self._padding = (
            int(pair[0]) for pair in (convolution.kernel_size, convolution.stride, convolution.padding)
        )
        weights = convolution.weight.detach().flatten(1)
        self._weights = (weights if operator == POINTWISE else weights.t()).contiguous()
        bias = convolution.bias
        self._bias = self._weights.new_zeros(convolution.out_channels) if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C', H', W')."""
        if not x.is_cuda:
            return self._by_library(x)
        sizes = [len(x) * x.shape[2] * x.shape[3], x.shape[1], self._plain.out_channels]
        if self._operator == DEPTHWISE:
            sizes = [len(x), *x.shape[1:], self._kernel, self._stride]
        forms = {PLAIN: lambda: self._by_library(x), TRITON: lambda: self._by_template(x, sizes)}
        return fastest(self._operator, x, sizes, forms, lasts=may_search)

    def _by_library(self, x: Tensor) -> Tensor:
        found: Tensor = self._plain(x)
        return found if self._low == -self._high == float("-inf") else functional.hardtanh(found, self._low, self._high)

    def _by_template(self, x: Tensor, sizes: list[int]) -> Tensor:
        from split_infer_ros.vision_ops.kernels import convolution  # Triton is optional
        from split_infer_ros.vision_ops.kernels.gpu import gpu_of

        given, tf32 = (x, self._weights, self._bias, self._low, self._high), torch.backends.cudnn.allow_tf32

        def rule(schedule: Config) -> str | None:
            if self._operator == POINTWISE:
                return pointwise_objection(schedule, gpu_of(x.device), x.dtype, tf32)
            return depthwise_objection(schedule, self._kernel)

        def run(schedule: Config) -> Tensor:
            if self._operator == POINTWISE:
                return convolution.pointwise(*given, tf32, **schedule)  # type: ignore[arg-type]
            shape = self._kernel, self._stride, self._padding
            return convolution.depthwise(*given, *shape, **schedule)  # type: ignore[arg-type]

        return run(best_schedule(self._operator, x, sizes, run, rule))
