"""Convolutions on a GPU. cuDNN computes them, or a kernel of this package if it was measured to be faster.

Such a kernel is a template: a schedule decides how the kernel divides its work (paper 004, §3.2.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from split_infer_ros.search.space import Config
from split_infer_ros.vision_ops.implementations import ImplementationChoice, run_fastest
from split_infer_ros.vision_ops.launch_limits import depthwise_rejection, gpu_limits, tiled_rejection
from split_infer_ros.vision_ops.schedules import ConvolutionTemplate, best_schedule, has_search_time

CONVOLUTION_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MIN_GROUP_CHANNELS = 4  # with fewer, nearly all of a tile of 16 channels is empty
GEOMETRY: Mapping[ConvolutionTemplate, Sequence[str]] = {  # what a template's kernel takes from a convolution
    ConvolutionTemplate.POINTWISE: (),
    ConvolutionTemplate.DEPTHWISE: ("kernel", "stride", "padding"),
    ConvolutionTemplate.WINDOWED: ("kernel", "stride", "padding", "dilation", "groups"),
}


def is_square(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Returns whether a layer is a convolution that kernels of this package may compute.

    Its window is square, its padding is zero, and its type is one of ``CONVOLUTION_DTYPES``. Stride, padding and
    dilation are the same for rows and columns.
    """
    if type(layer) is not nn.Conv2d or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return False
    pairs = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    return layer.weight.dtype in CONVOLUTION_DTYPES and all(len(set(pair)) == 1 for pair in pairs)


def template_of(convolution: nn.Module) -> ConvolutionTemplate | None:
    """Returns the template whose kernel can compute a module; None if there is none."""
    if not is_square(convolution):
        return None
    c = convolution
    if c.groups == 1 and (c.kernel_size[0], c.stride[0], c.padding[0]) == (1, 1, 0):
        return ConvolutionTemplate.POINTWISE
    if c.groups == c.in_channels == c.out_channels > 1 and c.dilation == (1, 1):
        return ConvolutionTemplate.DEPTHWISE
    if min(c.in_channels, c.out_channels) // c.groups >= MIN_GROUP_CHANNELS:
        return ConvolutionTemplate.WINDOWED
    return None


def arranged_weights(convolution: nn.Conv2d, template: ConvolutionTemplate) -> Tensor:
    """Returns the weights of a convolution in the shape that the kernel of its template takes.

    Returns:
        (kernel * kernel, C) for a depthwise convolution of C channels. Otherwise (C', kernel * kernel * C / groups),
        for C input and C' output channels.
    """
    weights = convolution.weight.detach()
    if template is ConvolutionTemplate.DEPTHWISE:
        return weights.flatten(1).t().contiguous()
    return weights.permute(0, 2, 3, 1).flatten(1).contiguous()


class ScheduledConv2d(nn.Module):
    """A convolution with clamped results. On a GPU, measurements choose its implementation.

    It uses the weights and bias that the convolution has when this module is made.

    Args:
        convolution: a convolution for which ``template_of`` finds a template. Its parameters stay on their device.
        low, high: the limits to which results are clamped.

    Attributes:
        weights: the weights as ``arranged_weights`` returns them.
        bias: one number for each output channel; zeros if the convolution has none.
    """

    def __init__(self, convolution: nn.Conv2d, low: float = -math.inf, high: float = math.inf) -> None:
        super().__init__()
        template = template_of(convolution)
        assert template is not None
        self._template, self._plain = template, convolution
        self._low, self._high = low, high
        geometry = {
            "kernel": convolution.kernel_size[0],
            "stride": convolution.stride[0],
            "padding": int(convolution.padding[0]),
            "dilation": convolution.dilation[0],
            "groups": convolution.groups,
        }
        self._geometry = {name: geometry[name] for name in GEOMETRY[template]}
        self.weights = arranged_weights(convolution, template)
        bias = convolution.bias
        self.bias = self.weights.new_zeros(convolution.out_channels) if bias is None else bias.detach()

    @property
    def kernel_options(self) -> Mapping[str, Any]:
        """The keyword arguments of the template's kernel: ``low``, ``high``, and what ``GEOMETRY`` names."""
        return {"low": self._low, "high": self._high, **self._geometry}

    def forward(self, x: Tensor) -> Tensor:
        """Convolves maps (N, C, H, W) of C channels to (N, C', H', W') of C' channels, and clamps the result."""
        if not x.is_cuda:
            return self._by_library(x)
        sizes = self._sizes(x)
        implementations = {
            ImplementationChoice.PLAIN: lambda: self._by_library(x),
            ImplementationChoice.TRITON: lambda: self._by_template(x, sizes),
        }
        return run_fastest(self._template.value, x, sizes, implementations, may_keep=has_search_time)

    def _sizes(self, x: Tensor) -> list[int]:
        """Returns the numbers on which the convolution's time depends."""
        images, channels, rows, columns = x.shape
        geometry, out_channels = self._geometry, self._plain.out_channels
        if self._template is ConvolutionTemplate.POINTWISE:
            return [images * rows * columns, channels, out_channels]
        if self._template is ConvolutionTemplate.DEPTHWISE:
            return [images, channels, rows, columns, geometry["kernel"], geometry["stride"]]
        groups = geometry["groups"]
        pixels = images * rows * columns // geometry["stride"] ** 2
        return [pixels, channels // groups, out_channels // groups, groups, geometry["kernel"], geometry["stride"]]

    def _by_library(self, x: Tensor) -> Tensor:
        convolved: Tensor = self._plain(x)
        if self._low == -math.inf and self._high == math.inf:
            return convolved
        return functional.hardtanh(convolved, self._low, self._high)

    def _by_template(self, x: Tensor, sizes: list[int]) -> Tensor:
        # only here: Triton is optional
        from split_infer_ros.vision_ops.kernels.convolution import depthwise, pointwise
        from split_infer_ros.vision_ops.kernels.windowed_convolution import windowed

        is_depthwise = self._template is ConvolutionTemplate.DEPTHWISE
        tf32 = torch.backends.cudnn.allow_tf32
        options: dict[str, Any] = dict(self.kernel_options)
        if not is_depthwise:
            options["tf32"] = tf32
        kernels: Mapping[ConvolutionTemplate, Callable[..., Tensor]] = {
            ConvolutionTemplate.POINTWISE: pointwise,
            ConvolutionTemplate.DEPTHWISE: depthwise,
            ConvolutionTemplate.WINDOWED: windowed,
        }

        def rule(schedule: Config) -> str | None:
            if is_depthwise:
                return depthwise_rejection(schedule, self._geometry["kernel"])
            return tiled_rejection(schedule, gpu_limits(x.device), x.dtype, tf32=tf32)

        def run(schedule: Config) -> Tensor:
            return kernels[self._template](x, self.weights, self.bias, **options, **schedule)

        return run(best_schedule(self._template, x, sizes, run=run, rule=rule))
