"""Models that torch.fx cannot trace: by torch.export, as a graph of the same form."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, fx, nn

from split_infer_ros.errors import ConfigurationError

_CHECKS = (torch.ops.aten._assert_tensor_metadata.default,)  # that dtypes and devices stay as they were traced

STACK = "nn_module_stack"  # where nodes keep in which modules' forwards they were traced


def export(model: nn.Module, image_shape: tuple[int, int, int], reason: Exception) -> fx.GraphModule:
    """The model's operations for any batch size, with every branch taken as for images of that shape.

    Args:
        model: takes float32 (N, C, H, W).
        image_shape: (C, H, W).
        reason: why torch.fx could not.

    Raises:
        ConfigurationError: a branch depends on values, or on the batch size.
    """
    batch = torch.export.Dim("batch", min=1)
    try:
        program = torch.export.export(
            model, (torch.zeros((2, *image_shape)),), dynamic_shapes=({0: batch},), strict=False
        )
    except Exception as error:  # an exception of the model's own, or one of very many of torch's
        raise ConfigurationError(
            f"{type(model).__name__} cannot be traced, so it has no split points: its forward must take float32 "
            f"(N, {', '.join(map(str, image_shape))}) of any N and must not branch on values "
            f"(torch.fx: {_reason(reason)}; torch.export: {_reason(error)})."
        ) from error
    return tidy(program.module())


def tidy(graph: fx.GraphModule) -> fx.GraphModule:
    """Bring an exported graph into the form of a traced one, in place; a traced one stays as it is.

    Its input comes first and constants right before they are used. Batch sizes are read where they are needed, so
    that no number is alive across the whole model, where it would forbid every split point.
    """
    nodes = graph.graph
    graph.graph.set_codegen(fx.graph.CodeGen())  # positional arguments in, a tuple out
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


def place(graph: fx.GraphModule, device: torch.device, dtype: torch.dtype) -> fx.GraphModule:
    """A copy that runs elsewhere or in another precision; an exported graph names devices where it makes tensors."""
    other = copy.deepcopy(graph).to(device, dtype)
    name_device(other, device)
    return other


def name_device(graph: fx.GraphModule, device: torch.device) -> None:
    """Have a graph make its tensors on that device, in place."""
    for node in graph.graph.nodes:
        if isinstance(node.kwargs.get("device"), torch.device):
            node.update_kwarg("device", device)
    graph.recompile()


def _first_user(node: fx.Node) -> fx.Node:
    following = node.next
    while following not in node.users:
        following = following.next
    return following


def _read_sizes_where_needed(nodes: fx.Graph) -> None:
    latest: fx.Node | None = None  # value that has the batch in front

    def nearby(size: fx.Node, user: fx.Node) -> fx.Node:
        with nodes.inserting_before(user):
            if size.target == torch.ops.aten.sym_size.int:
                copy = nodes.call_function(torch.ops.aten.sym_size.int, (latest, 0))
            else:  # computed from sizes
                near = {other: nearby(other, user) for other in size.all_input_nodes}
                copy = nodes.node_copy(size, near.__getitem__)
        copy.meta = {**size.meta, STACK: user.meta.get(STACK)}
        return copy

    for node in list(nodes.nodes):
        for size in node.all_input_nodes:
            if latest is not None and _is_of_batch(size) and not _is_of_batch(node):
                node.replace_input_with(size, nearby(size, node))
        if node.op != "get_attr" and _has_batch_in_front(node.meta.get("val")):
            latest = node
    nodes.eliminate_dead_code()


def _is_of_batch(node: fx.Node) -> bool:
    """True for the batch size, and for numbers that follow from it."""
    value = node.meta.get("val")
    if not isinstance(value, torch.SymInt) or node.op != "call_function":
        return False
    if node.target == torch.ops.aten.sym_size.int:
        source = node.args[0]
        return bool(node.args[1] == 0) and isinstance(source, fx.Node) and _has_batch_in_front(source.meta.get("val"))
    return all(_is_of_batch(other) for other in node.all_input_nodes)


def _has_batch_in_front(value: object) -> bool:
    if not isinstance(value, Tensor) or not value.dim():
        return False
    length = value.shape[0]
    return isinstance(length, torch.SymInt) and bool(length.node.expr.is_symbol)


def _reason(error: Exception) -> str:
    """The first line of what torch says that is not advice on how to hear more."""
    lines = [line.strip(" -") for line in str(error).splitlines() if "TORCH_LOGS" not in line]
    return next(filter(None, lines), type(error).__name__)
