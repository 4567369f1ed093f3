"""Runs convolutions with this package's own kernels. A kernel also applies an activation that clamps, such as ReLU."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx, nn

from split_infer_ros.engines.fusion import replace_convolutions
from split_infer_ros.vision_ops.convolution import ScheduledConv2d, template_of

INFINITE = float("inf")


def schedule_convolutions(graph: fx.GraphModule) -> None:
    """Replaces convolutions of a graph by ``ScheduledConv2d``, if this package has a kernel's template for them.

    The graph is changed in place; modules are not changed. If the only user of a replaced convolution is a ReLU or
    ReLU6, the activation becomes part of the new module. Results differ only by rounding.
    """
    replace_clamped(graph, "scheduled", lambda module: template_of(module) is not None, ScheduledConv2d)


def replace_clamped(
    graph: fx.GraphModule, prefix: str, fits: Callable[[nn.Module], bool], make: Callable[..., nn.Module]
) -> None:
    """Replaces layers of a graph, and the clamping activations directly behind them, in place.

    Args:
        graph: the graph. Its modules are not changed.
        prefix: begins the names of the new modules.
        fits: says whether a module is a layer to be replaced.
        make: makes the new module of a layer, and of the lowest and the highest result, which may be infinite.
    """

    def made(layer: nn.Module, activation: nn.Module | None, _: str) -> nn.Module:
        limits = None if activation is None else limits_of(activation)
        return make(layer, *(limits or (-INFINITE, INFINITE)))

    replace_convolutions(graph, prefix, fits, limits_of, made)


def limits_of(activation: nn.Module) -> tuple[float, float] | None:
    """Returns the lowest and highest result of a clamping activation; None for another activation."""
    if isinstance(activation, nn.Hardtanh):  # ReLU6 is one
        return float(activation.min_val), float(activation.max_val)
    return (0.0, INFINITE) if type(activation) is nn.ReLU else None
