"""A model as one traced graph, ready to be cut: folded and laid out for speed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from split_infer_ros.errors import ConfigurationError

BLOCKS = "blocks"  # key in a traced model's meta: the paths of its blocks, which name its cuts

_CHAINS = (nn.Sequential, nn.ModuleList)  # their subclasses are blocks of their own


def trace(model: nn.Module) -> fx.GraphModule:
    """The model's operations in order, by torch.fx; shares the model's parameters.

    Raises:
        ConfigurationError: the model's control flow depends on its data.
    """
    model.eval()
    try:
        graph = fx.symbolic_trace(model)
    except (fx.proxy.TraceError, TypeError, NameError, RuntimeError) as error:
        raise ConfigurationError(
            f"{type(model).__name__} cannot be traced, so it has no split points ({error}); "
            "its forward must not branch on tensor values."
        ) from error
    graph.meta[BLOCKS] = tuple(_block_paths(model))
    return graph


def fold_batch_norms(graph: fx.GraphModule) -> None:
    """Fold every batch norm that directly follows a convolution into its weights, in place.

    The result differs from the unfolded model by rounding alone (about 1e-6 relative).
    """
    modules = dict(graph.named_modules())
    calls = Counter(node.target for node in graph.graph.nodes if node.op == "call_module")
    for node in list(graph.graph.nodes):
        if node.op != "call_module" or not isinstance(modules[node.target], nn.BatchNorm2d):
            continue
        source = node.args[0]
        if source.op != "call_module" or not isinstance(modules[source.target], nn.Conv2d):
            continue
        if len(source.users) > 1 or calls[source.target] > 1:  # somebody else needs what the convolution gives
            continue
        if modules[node.target].running_mean is None:  # it normalises by what it sees
            continue
        folded = fuse_conv_bn_eval(modules[source.target], modules[node.target])
        _replace(graph, source.target, folded)
        modules[source.target] = folded
        node.replace_all_uses_with(source)
        graph.graph.erase_node(node)
    graph.delete_all_unused_submodules()
    graph.recompile()


def prepare(model: nn.Module) -> fx.GraphModule:
    """Trace for inference at speed: batch norms folded, convolutions laid out channels-last.

    The model's modules are reused and may be changed: give a model that nobody else uses.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    graph = trace(model)
    fold_batch_norms(graph)
    return graph.to(memory_format=torch.channels_last)


def fingerprint(graph: fx.GraphModule) -> str:
    """Twelve digits that tell this model's operations, in order and with their shapes, from any other's.

    Parameters' values are not in it: they do not change what an operation costs.
    """
    parts = [str(graph.graph), *(f"{name} {module!r}" for name, module in graph.named_modules() if name)]
    parts += [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in graph.state_dict().items()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _block_paths(module: nn.Module, path: str = "") -> Iterator[str]:
    """Paths of the blocks: chains are opened, and so is a part of the whole that holds most of its weights."""
    total = sum(parameter.numel() for parameter in module.parameters()) or 1
    for name, child in module.named_children():
        child_path = f"{path}.{name}" if path else name
        share = sum(parameter.numel() for parameter in child.parameters()) / total
        is_chain = type(child) in _CHAINS
        holds_chain = any(type(grandchild) in _CHAINS for grandchild in child.children())
        if is_chain or (holds_chain and share > 0.5 and not path):
            yield from _block_paths(child, child_path)
        else:
            yield child_path


def _replace(graph: fx.GraphModule, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(graph.get_submodule(parent), name, module)
