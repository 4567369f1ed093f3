"""Exports models by torch.export if torch.fx cannot trace them. Such graphs get the structure of traced graphs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.device import Device

_CHECKS = (torch.ops.aten._assert_tensor_metadata.default,)  # assert that dtypes and devices are as traced

STACK = "nn_module_stack"  # key in a node's meta: the modules whose forwards were running when the node was traced


class UntraceableError(ConfigurationError):
    """A module cannot be traced, or not for every batch size."""


def export(model: nn.Module, image_shape: tuple[int, int, int], reason: Exception) -> fx.GraphModule:
    """Exports a model by torch.export, for any batch size.

    If the model branches on the images' shape, the graph has only the branches that images of ``image_shape`` take.

    Args:
        model: takes float32 (N, C, H, W).
        image_shape: (C, H, W).
        reason: the error that torch.fx raised, for the message.

    Raises:
        UntraceableError: torch.export fails, for example because a branch depends on values or on the batch size.
    """
    try:
        return _exported(model, (2, *image_shape), ({0: torch.export.Dim("batch", min=1)},))
    except Exception as error:  # the model may raise anything, and torch many things
        raise UntraceableError(
            f"{type(model).__name__} cannot be traced, so it has no split points: its forward must take float32 "
            f"(N, {', '.join(map(str, image_shape))}) of any N and must not branch on values "
            f"(torch.fx: {_reason(reason)}; torch.export: {_reason(error)})."
        ) from error


def export_for(model: nn.Module, image_shape: tuple[int, int, int], batch_size: int) -> fx.GraphModule:
    """Exports a model by torch.export, for one batch size. The model's branches may depend on the batch size.

    Args:
        model: takes float32 (N, C, H, W).
        image_shape: (C, H, W).
        batch_size: the only batch size that the graph takes.

    Raises:
        UntraceableError: torch.export fails, for example because a branch depends on values.
    """
    try:
        return _exported(model, (batch_size, *image_shape), None)
    except Exception as error:  # the model may raise anything, and torch many things
        raise UntraceableError(
            f"{type(model).__name__} cannot be traced for {batch_size} images (torch.export: {_reason(error)})."
        ) from error


def _exported(model: nn.Module, shape: tuple[int, ...], dynamic_shapes: Any) -> fx.GraphModule:
    program = torch.export.export(model, (torch.zeros(shape),), dynamic_shapes=dynamic_shapes, strict=False)
    return tidy(program.module())


def tidy(graph: fx.GraphModule) -> fx.GraphModule:
    """Gives an exported graph the structure of a graph that torch.fx traced, in place, and returns it.

    The input comes first, and each constant comes right before its first use. Each batch size is read right before it
    is used. A batch size that was read only once would cross every place behind it, and only tensors may cross a split
    point. A graph that torch.fx traced does not change.
    """
    nodes = graph.graph
    nodes.set_codegen(fx.graph.CodeGen())  # positional arguments in, a tuple out
    for node in list(nodes.nodes):
        if not node.users and (node.op == "call_module" or node.target in _CHECKS):
            nodes.erase_node(node)
    for node in list(nodes.nodes):
        if node.op == "placeholder":
            nodes._root.append(node)
        elif node.op == "get_attr" and node.users:
            user = _first_user(node)
            user.prepend(node)
            node.meta.setdefault(STACK, user.meta.get(STACK))
    _read_sizes_where_needed(nodes)
    graph.recompile()
    return graph


def copy_to_device(graph: fx.GraphModule, device: Device, dtype: torch.dtype) -> fx.GraphModule:
    """Returns a copy of a graph that runs on ``device``. Its floating-point weights have the dtype ``dtype``."""
    moved = copy.deepcopy(graph).to(device, dtype)
    set_device(moved, device)
    return moved


def set_device(graph: fx.GraphModule, device: Device) -> None:
    """Changes the device on which a graph creates new tensors, in place.

    An exported graph names a device in each node that creates a tensor.
    """
    for node in graph.graph.nodes:
        if isinstance(node.kwargs.get("device"), torch.device):
            node.update_kwarg("device", torch.device(device))
    graph.recompile()


def _first_user(node: fx.Node) -> fx.Node:
    following = node.next
    while following not in node.users:
        following = following.next
    return following


def _read_sizes_where_needed(nodes: fx.Graph) -> None:
    latest: fx.Node | None = None  # the last value so far whose first dimension is the batch

    def read_before(size: fx.Node, user: fx.Node) -> fx.Node:
        with nodes.inserting_before(user):
            if size.target == torch.ops.aten.sym_size.int:
                copy = nodes.call_function(torch.ops.aten.sym_size.int, (latest, 0))
            else:  # computed from sizes
                inputs = {other: read_before(other, user) for other in size.all_input_nodes}
                copy = nodes.node_copy(size, inputs.__getitem__)
        copy.meta = {**size.meta, STACK: user.meta.get(STACK)}
        return copy

    for node in list(nodes.nodes):
        for size in node.all_input_nodes:
            if latest is not None and _is_batch_size(size) and not _is_batch_size(node):
                node.replace_input_with(size, read_before(size, node))
        if node.op != "get_attr" and _starts_with_batch(node.meta.get("val")):
            latest = node
    nodes.eliminate_dead_code()


def _is_batch_size(node: fx.Node) -> bool:
    """Returns whether a node gives the batch size or a number that is computed from it."""
    value = node.meta.get("val")
    if not isinstance(value, torch.SymInt) or node.op != "call_function":
        return False
    if node.target == torch.ops.aten.sym_size.int:
        source = node.args[0]
        return bool(node.args[1] == 0) and isinstance(source, fx.Node) and _starts_with_batch(source.meta.get("val"))
    return all(_is_batch_size(other) for other in node.all_input_nodes)


def _starts_with_batch(value: object) -> bool:
    if not isinstance(value, Tensor) or not value.dim():
        return False
    length = value.shape[0]
    return isinstance(length, torch.SymInt) and bool(length.node.expr.is_symbol)


def _reason(error: Exception) -> str:
    """Returns the first line of torch's message that is not advice on logging."""
    lines = [line.strip(" -") for line in str(error).splitlines() if "TORCH_LOGS" not in line]
    return next(filter(None, lines), type(error).__name__)
