"""Convolutions by kernels of our own, with the clamp that follows them in the same pass."""

from __future__ import annotations

from torch import fx, nn

from split_infer_ros.engines.fusion import follower_of
from split_infer_ros.vision_ops.convolution import ScheduledConv2d, template_of

INFINITE = float("inf")


def schedule_convolutions(graph: fx.GraphModule) -> None:
    """Replace depthwise and 1x1 convolutions, and a ReLU or ReLU6 that alone follows one, in place.

    Modules are not changed; results differ by rounding alone.
    """
    modules = dict(graph.named_modules())
    made: dict[tuple[str, str], str] = {}
    for node in list(graph.graph.nodes):
        if node.op != "call_module" or template_of(modules[str(node.target)]) is None:
            continue
        follower = follower_of(node, modules, lambda module: limits_of(module) is not None)
        key = str(node.target), str(follower.target) if follower else ""
        if key not in made:
            made[key] = f"scheduled_{len(made)}"
            limits = limits_of(modules[key[1]]) if follower else None
            graph.add_module(made[key], ScheduledConv2d(modules[key[0]], *(limits or (-INFINITE, INFINITE))))
        node.target = made[key]
        if follower:
            follower.replace_all_uses_with(node)
            graph.graph.erase_node(follower)
    graph.delete_all_unused_submodules()
    graph.recompile()


def limits_of(activation: nn.Module) -> tuple[float, float] | None:
    """Between which values an activation keeps what it is given; None if it does something else."""
    if isinstance(activation, nn.Hardtanh):  # ReLU6 is one
        return float(activation.min_val), float(activation.max_val)
    return (0.0, INFINITE) if type(activation) is nn.ReLU else None
