"""The modules of a traced model, as torch.fx and torch.export record them in its nodes."""

from __future__ import annotations

import re

from torch import fx

from split_infer_ros.split.blocks import Operation, class_of, find_blocks


def blocks_of(graph: fx.GraphModule) -> set[str]:
    """Returns the paths of the blocks of a traced model; see ``find_blocks``."""
    nodes = list(graph.graph.nodes)
    stacks = [stack for node in nodes if (stack := node.meta.get("nn_module_stack"))]
    classes = {str(path): class_of(_class_name(kind)) for stack in stacks for path, kind in stack.values()}
    weights = {name: parameter.numel() for name, parameter in graph.named_parameters()}
    return find_blocks(list(map(operation_of, nodes)), classes, weights)


def operation_of(node: fx.Node) -> Operation:
    """Returns a node of a traced graph as an ``Operation``, for the search for blocks."""
    is_function = node.op in ("call_function", "call_method")
    return Operation(_owner_of(node), re.sub(r"_\d+$", "", node.name) if is_function else "")  # without torch's number


def kind_of(node: fx.Node) -> str:
    """Returns the class name of the module that ran a node's operation, such as ``Conv2d``; empty if none is known."""
    stack = node.meta.get("nn_module_stack")
    return _class_name(list(stack.values())[-1][1]).rpartition(".")[2] if stack else ""


def _owner_of(node: fx.Node) -> str:
    if node.op == "call_module":
        return str(node.target)
    stack = node.meta.get("nn_module_stack")
    return str(list(stack.values())[-1][0]) if stack else ""


def _class_name(kind: type | str) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
