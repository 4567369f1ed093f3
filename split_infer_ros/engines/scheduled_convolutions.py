"""Runs convolutions with this package's own kernels. A kernel also applies an activation that clamps, such as ReLU."""

from __future__ import annotations

from torch import fx, nn

from split_infer_ros.engines.fusion import follower_of
from split_infer_ros.vision_ops.convolution import ScheduledConv2d, template_of

INFINITE = float("inf")


def schedule_convolutions(graph: fx.GraphModule) -> None:
    """Replaces convolutions of a graph by ``ScheduledConv2d``, if this package has a kernel's template for them.

    The graph is changed in place; modules are not changed. If the only user of a replaced convolution is a ReLU or
    ReLU6, the activation becomes part of the new module. Results differ only by rounding.
    """
    modules = dict(graph.named_modules())
    scheduled: dict[tuple[str, str], str] = {}
    for node in list(graph.graph.nodes):
        if node.op != "call_module" or template_of(modules[str(node.target)]) is None:
            continue
        follower = follower_of(node, modules, lambda module: limits_of(module) is not None)
        key = str(node.target), str(follower.target) if follower else ""
        if key not in scheduled:
            scheduled[key] = f"scheduled_{len(scheduled)}"
            limits = limits_of(modules[key[1]]) if follower else None
            low, high = limits or (-INFINITE, INFINITE)
            graph.add_module(scheduled[key], ScheduledConv2d(modules[key[0]], low, high))
        node.target = scheduled[key]
        if follower:
            follower.replace_all_uses_with(node)
            graph.graph.erase_node(follower)
    graph.delete_all_unused_submodules()
    graph.recompile()


def limits_of(activation: nn.Module) -> tuple[float, float] | None:
    """Returns the lowest and highest result of a clamping activation; None for another activation."""
    if isinstance(activation, nn.Hardtanh):  # ReLU6 is one
        return float(activation.min_val), float(activation.max_val)
    return (0.0, INFINITE) if type(activation) is nn.ReLU else None
