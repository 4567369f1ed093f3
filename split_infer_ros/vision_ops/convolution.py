"""Depthwise and 1x1 convolutions on a GPU: cuDNN's, or a template's where that was measured to be faster (§3.2.2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from split_infer_ros.search.space import Config
from split_infer_ros.vision_ops.implementations import ImplementationChoice, run_fastest
from split_infer_ros.vision_ops.launch_limits import depthwise_rejection, pointwise_rejection
from split_infer_ros.vision_ops.schedules import ConvolutionTemplate, best_schedule, has_search_time

CONVOLUTION_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def template_of(convolution: nn.Module) -> ConvolutionTemplate | None:
    """Returns the template that can compute a module; None if there is none."""
    c = convolution
    if type(c) is not nn.Conv2d or c.padding_mode != "zeros" or isinstance(c.padding, str):
        return None
    if c.weight.dtype not in CONVOLUTION_DTYPES:
        return None
    if any(len(set(pair)) > 1 for pair in (c.kernel_size, c.stride, c.padding)):
        return None
    if c.groups == 1 and (c.kernel_size[0], c.stride[0], c.padding[0]) == (1, 1, 0):
        return ConvolutionTemplate.POINTWISE
    if c.groups == c.in_channels == c.out_channels > 1 and c.dilation == (1, 1):
        return ConvolutionTemplate.DEPTHWISE
    return None


class ScheduledConv2d(nn.Module):
    """A convolution with clamped results, whose implementation on a GPU is chosen by measurement.

    It uses the weights and bias that the convolution has when this module is made.

    Args:
        convolution: of float32, float16 or bfloat16; ``template_of`` finds a template for it. The parameters stay on
            their device.
        low, high: the limits to which results are clamped.
    """

    def __init__(self, convolution: nn.Conv2d, low: float = -math.inf, high: float = math.inf) -> None:
        super().__init__()
        template = template_of(convolution)
        assert template is not None
        self._template, self._plain = template, convolution
        self._low, self._high = low, high
        self._kernel = int(convolution.kernel_size[0])
        self._stride = int(convolution.stride[0])
        self._padding = int(convolution.padding[0])
        weights = convolution.weight.detach().flatten(1)
        self._weights = (weights if template is ConvolutionTemplate.POINTWISE else weights.t()).contiguous()
        bias = convolution.bias
        self._bias = self._weights.new_zeros(convolution.out_channels) if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Convolves and clamp (N, C, H, W) to (N, C', H', W')."""
        if not x.is_cuda:
            return self._by_library(x)
        if self._template is ConvolutionTemplate.DEPTHWISE:
            sizes = [len(x), *x.shape[1:], self._kernel, self._stride]
        else:
            sizes = [len(x) * x.shape[2] * x.shape[3], x.shape[1], self._plain.out_channels]
        implementations = {
            ImplementationChoice.PLAIN: lambda: self._by_library(x),
            ImplementationChoice.TRITON: lambda: self._by_template(x, sizes),
        }
        return run_fastest(self._template.value, x, sizes, implementations, may_keep=has_search_time)

    def _by_library(self, x: Tensor) -> Tensor:
        convolved: Tensor = self._plain(x)
        if self._low == -math.inf and self._high == math.inf:
            return convolved
        return functional.hardtanh(convolved, self._low, self._high)

    def _by_template(self, x: Tensor, sizes: list[int]) -> Tensor:
        from split_infer_ros.vision_ops.kernels.convolution import depthwise, pointwise  # Triton is optional
        from split_infer_ros.vision_ops.kernels.gpu import gpu_limits

        tf32 = torch.backends.cudnn.allow_tf32

        def rule(schedule: Config) -> str | None:
            if self._template is ConvolutionTemplate.POINTWISE:
                return pointwise_rejection(schedule, gpu_limits(x.device), x.dtype, tf32=tf32)
            return depthwise_rejection(schedule, self._kernel)

        def run(schedule: Config) -> Tensor:
            if self._template is ConvolutionTemplate.POINTWISE:
                return pointwise(
                    x,
                    self._weights,
                    self._bias,
                    low=self._low,
                    high=self._high,
                    tf32=tf32,
                    **schedule,  # type: ignore[arg-type]
                )
            return depthwise(
                x,
                self._weights,
                self._bias,
                low=self._low,
                high=self._high,
                kernel=self._kernel,
                stride=self._stride,
                padding=self._padding,
                **schedule,  # type: ignore[arg-type]
            )

        return run(best_schedule(self._template, x, sizes, run=run, rule=rule))
