"""A model as one traced graph, ready to be split: folded and laid out for speed."""

from __future__ import annotations

import copy
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.split.export import export, tidy


def trace(model: nn.Module, image_shape: tuple[int, int, int] = (3, 224, 224)) -> fx.GraphModule:
    """The model's operations in order, by torch.fx, or by torch.export where that cannot; shares the parameters.

    Args:
        model: takes float32 (N, C, H, W), gives a tensor or a tuple of tensors; a graph is taken as it is.
        image_shape: (C, H, W); torch.export alone asks for it.

    Raises:
        ConfigurationError: the model's control flow depends on its data, or it gives something else.
    """
    model.eval()
    if isinstance(model, fx.GraphModule):
        return tidy(model)
    try:
        graph = symbolic_trace(model)
    except Exception as error:  # what a forward makes of values that are not there is anybody's guess
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
    """As torch.fx has it; but modules that other threads call meanwhile are left alone.

    Args:
        root: a model, which is shared, or a function.
    """
    tracer = _Tracer()
    graph = tracer.trace(root)
    return fx.GraphModule(tracer.root, graph, type(root).__name__)


class _Tracer(fx.Tracer):
    """torch.fx's, which while it traces is told of every module that anybody calls; those of other threads run on."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


def _fix_options(graph: fx.GraphModule, model: nn.Module) -> None:
    """Images are all that goes in: the forward's other arguments are as they are by default."""
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


def prepare(
    model: nn.Module, image_shape: tuple[int, int, int] = (3, 224, 224), folding: bool = True
) -> fx.GraphModule:
    """Trace for inference at speed: batch norms folded (unless ``folding`` is false), convolutions channels-last.

    The model's modules are reused and may be changed: give a model that nobody else uses. Raises as ``trace``.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    graph = trace(model, image_shape)
    if folding:
        fold_batch_norms(graph)
    return graph.to(memory_format=torch.channels_last)


def stand_in(tensor: Tensor) -> Tensor:
    """What has a tensor's shape and dtype and no memory: one number that takes the place of all."""
    made: Tensor = torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)
    return nn.Parameter(made, requires_grad=False) if isinstance(tensor, nn.Parameter) else made


def state_of(graph: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name, those that a state dict leaves out as well."""
    state: dict[str, Tensor] = dict(graph.named_parameters(remove_duplicate=False))
    return state | dict(graph.named_buffers(remove_duplicate=False))


def put(graph: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a model those tensors in place of its parameters and buffers of these names."""
    for name, tensor in tensors.items():
        path, _, own = name.rpartition(".")
        module = graph.get_submodule(path)
        if own in module._parameters:
            module._parameters[own] = nn.Parameter(tensor, requires_grad=False)
        else:
            module._buffers[own] = tensor


def put_apart(graph: fx.GraphModule, tensors: Mapping[str, Tensor]) -> None:
    """The same, in modules of its own: partitions that were split from this model keep what theirs have."""
    same = {id(tensor): tensor for tensor in state_of(graph).values()}
    called = {str(node.target) for node in graph.graph.nodes if node.op == "call_module"}  # which partitions share
    for path in sorted(called, key=len):  # outer ones first
        if any(name.startswith(f"{path}.") for name in tensors):
            _replace(graph, path, copy.deepcopy(graph.get_submodule(path), dict(same)))
    put(graph, tensors)


def fingerprint(graph: fx.GraphModule) -> str:
    """Twelve digits that tell this model's operations, in order and with their shapes, from any other's.

    Parameters' values are not in it: they do not change what an operation costs.
    """
    parts = [str(graph.graph), *(f"{name} {module!r}" for name, module in graph.named_modules() if name)]
    parts += [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in graph.state_dict().items()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _replace(graph: fx.GraphModule, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(graph.get_submodule(parent), name, module)
