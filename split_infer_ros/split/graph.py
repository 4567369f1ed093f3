"""Traces a model into one graph and prepares it for splitting: batch norms folded, weights laid out for speed."""

from __future__ import annotations

import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.split.export import export, export_for, tidy
from split_infer_ros.torch_graphs.module_state import state_of
from split_infer_ros.torch_graphs.own_thread_tracer import OwnThreadTracer


def trace(
    model: nn.Module, image_shape: tuple[int, int, int] = (3, 224, 224), batch_size: int | None = None
) -> fx.GraphModule:
    """Traces a model by torch.fx, or by torch.export if torch.fx fails. The graph shares the model's parameters.

    Args:
        model: maps float32 (N, C, H, W) to a tensor or a tuple of tensors. It is put into eval mode. A graph that was
            traced before is only tidied; see ``tidy``.
        image_shape: (C, H, W), which only torch.export uses.
        batch_size: the only batch size that the graph will take; torch.export then traces it. None for any batch size.

    Raises:
        UntraceableError: the model's control flow depends on its data, or depends on the batch size and ``batch_size``
            is None.
        ConfigurationError: the model's result is neither a tensor nor a tuple of tensors, or its forward needs another
            argument beside the images.
    """
    model.eval()
    if isinstance(model, fx.GraphModule):
        return tidy(model)
    if batch_size is not None:
        graph = export_for(model, image_shape, batch_size)
    else:
        try:
            graph = symbolic_trace(model)
        except Exception as error:  # a forward that is given proxies may raise anything
            graph = export(model, image_shape, error)
    _fix_options(graph, model)
    (results,) = graph.graph.output_node().args
    outputs = results if isinstance(results, (tuple, list)) else [results]
    if not all(isinstance(output, fx.Node) for output in outputs):
        raise ConfigurationError(
            f"{type(model).__name__} gives a {type(results).__name__.removeprefix('immutable_')}; "
            "it must give a tensor or a tuple of tensors."
        )
    return graph


def symbolic_trace(root: nn.Module | Callable[..., Any]) -> fx.GraphModule:
    """Returns the graph that torch.fx traces. Other threads may call modules meanwhile.

    Args:
        root: a model or a function. The graph shares the modules of a model.
    """
    tracer = OwnThreadTracer()
    graph = tracer.trace(root)
    return fx.GraphModule(tracer.root, graph, type(root).__name__)


def _fix_options(graph: fx.GraphModule, model: nn.Module) -> None:
    """Fixes all arguments of the forward but the images to their defaults."""
    for option in graph.graph.find_nodes(op="placeholder")[1:]:
        if not option.args:
            raise ConfigurationError(
                f"{type(model).__name__} takes '{option.target}' beside images; it must take images alone."
            )
        (default,) = option.args
        for user in list(option.users):
            user.args = fx.node.map_arg(user.args, lambda node: default if node is option else node)  # noqa: B023
            user.kwargs = fx.node.map_arg(user.kwargs, lambda node: default if node is option else node)  # noqa: B023
        graph.graph.erase_node(option)
    graph.recompile()


def fold_batch_norms(graph: fx.GraphModule) -> None:
    """Folds every batch norm that directly follows a convolution into the convolution's weights, in place.

    Results differ from the unfolded model's by rounding alone (about 1e-6 relative).
    """
    modules = dict(graph.named_modules())
    calls = Counter(node.target for node in graph.graph.nodes if node.op == "call_module")
    for node in list(graph.graph.nodes):
        if node.op != "call_module" or not isinstance(modules[node.target], nn.BatchNorm2d):
            continue
        source = node.args[0]
        if source.op != "call_module" or not isinstance(modules[source.target], nn.Conv2d):
            continue
        if len(source.users) > 1 or calls[source.target] > 1:  # the convolution's result has other users
            continue
        if modules[node.target].running_mean is None:  # it normalises by the batch's own statistics
            continue
        folded = fuse_conv_bn_eval(modules[source.target], modules[node.target])
        _replace(graph, source.target, folded)
        modules[source.target] = folded
        node.replace_all_uses_with(source)
        graph.graph.erase_node(node)
    graph.delete_all_unused_submodules()
    graph.recompile()


def prepare(
    model: nn.Module,
    image_shape: tuple[int, int, int] = (3, 224, 224),
    folding: bool = True,
    batch_size: int | None = None,
) -> fx.GraphModule:
    """Traces a model and prepares the graph for fast inference, with the weights of convolutions channels last.

    Args:
        model: as in ``trace``. Its modules are reused and may be changed, so nothing else may use the model.
        image_shape: (C, H, W).
        folding: whether batch norms are folded into convolutions.
        batch_size: as in ``trace``.

    Raises:
        ConfigurationError: the model cannot be traced; see ``trace``.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    graph = trace(model, image_shape, batch_size)
    if folding:
        fold_batch_norms(graph)
    return graph.to(memory_format=torch.channels_last)


def stand_in(tensor: Tensor) -> Tensor:
    """Returns a stand-in for a tensor: it has the same shape and dtype, but all elements share one number in memory."""
    expanded: Tensor = torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)
    return nn.Parameter(expanded, requires_grad=False) if isinstance(tensor, nn.Parameter) else expanded


def set_state(graph: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replaces parameters and buffers of a module, in place.

    Args:
        graph: the module.
        tensors: the new tensors, by the names of the parameters and buffers.
    """
    for name, tensor in tensors.items():
        path, _, own = name.rpartition(".")
        module = graph.get_submodule(path)
        if own in module._parameters:
            module._parameters[own] = nn.Parameter(tensor, requires_grad=False)
        else:
            module._buffers[own] = tensor


def set_own_state(graph: fx.GraphModule, tensors: Mapping[str, Tensor]) -> None:
    """Replaces parameters and buffers of a graph, in place. Partitions that were made before keep their tensors.

    Partitions share the graph's modules. So the graph first gets copies of the modules that change.

    Args:
        graph: the graph.
        tensors: the new tensors, by the names of the parameters and buffers.
    """
    shared_tensors = {id(tensor): tensor for tensor in state_of(graph).values()}
    called = {str(node.target) for node in graph.graph.nodes if node.op == "call_module"}  # shared with partitions
    for path in sorted(called, key=len):  # outer ones first
        if any(name.startswith(f"{path}.") for name in tensors):
            _replace(graph, path, copy.deepcopy(graph.get_submodule(path), dict(shared_tensors)))
    set_state(graph, tensors)


def fingerprint(graph: fx.GraphModule) -> str:
    """Returns twelve hexadecimal digits that identify the graph's operations, their order, and the shapes of weights.

    The values of weights do not matter, because they do not change what an operation costs.
    """
    parts = [str(graph.graph), *(f"{name} {module!r}" for name, module in graph.named_modules() if name)]
    parts += [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in graph.state_dict().items()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _replace(graph: fx.GraphModule, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(graph.get_submodule(parent), name, module)
