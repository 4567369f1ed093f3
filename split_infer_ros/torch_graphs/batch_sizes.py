"""Moves the reading of batch sizes in a traced graph to the places that need them."""

from __future__ import annotations

from collections.abc import Collection

from torch import fx


def read_sizes_where_needed(graph: fx.Graph, batched: Collection[fx.Node]) -> None:
    """Moves nodes that read a batch size, or compute from it alone, right before their uses, in place.

    A batch size that is read only once would cross every place behind it, and only tensors may cross a split point.
    Nodes that read a value's device, to make a tensor of numbers there, are moved for the same reason.

    Args:
        graph: the graph. Its nodes read sizes with the method ``size``, and devices with ``getattr``.
        batched: the nodes with values that have the batch as their first dimension.
    """
    sizes: set[fx.Node] = set()  # nodes with values that depend only on the batch size
    latest: fx.Node | None = None

    def made_before(user: fx.Node, node: fx.Node) -> fx.Node:
        if node not in sizes:  # a constant
            return node
        with graph.inserting_before(user):
            if _reads(node):
                copy = graph.create_node(node.op, node.target, (latest, *node.args[1:]))
            else:
                inputs = {each: made_before(user, each) for each in node.all_input_nodes}
                copy = graph.node_copy(node, inputs.__getitem__)
        copy.meta = dict(user.meta)
        return copy

    for node in list(graph.nodes):
        inputs = node.all_input_nodes
        is_computed = any(each in sizes for each in inputs) and all(
            each in sizes or each.op == "get_attr" for each in inputs
        )
        if node.op != "output" and ((_reads(node) and inputs[0] in batched) or is_computed):
            sizes.add(node)
            continue
        if latest is not None:
            for each in inputs:
                if each in sizes:
                    node.replace_input_with(each, made_before(node, each))
        if node in batched:
            latest = node


def _reads(node: fx.Node) -> bool:
    """Returns whether a node reads the length of a value's first dimension, or the value's device."""
    reads_size = node.op == "call_method" and node.target == "size" and node.args[1:] == (0,)
    return reads_size or (node.target is getattr and node.args[1:] == ("device",))
