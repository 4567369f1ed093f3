"""Applies a placement plan to a model's graph of operators."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from split_infer_ros.engines.fusion import fuse_convolutions
from split_infer_ros.operator_placement.plan import Copy, PlacementPlan, Tag
from split_infer_ros.runtime.device import Device


def copy_to(value: Any, device: Device) -> Any:
    """Returns a nested value with its tensors on ``device``. Tensors that are already there are not copied.

    A ``torch.device`` in the value is replaced by ``device``.
    """
    target = torch.device(device)

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return target
        return leaf.to(target) if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(move, value)


def has_copies(partition: object) -> bool:
    """Returns whether a partition contains copies between the processors, made by ``apply_plan``."""
    modules = partition.modules() if isinstance(partition, nn.Module) else ()
    graphs = (module.graph for module in modules if isinstance(module, fx.GraphModule))
    return any(node.target is copy_to for graph in graphs for node in graph.nodes)


def apply_plan(graph: fx.GraphModule, plan: PlacementPlan, devices: Mapping[Tag, Device]) -> fx.GraphModule:
    """Returns a graph with each operator on its processor and with the plan's copies.

    Args:
        graph: the graph from which ``read_operators`` read the operators. It is not changed. The result shares those of
            its weights that stay on their device.
        plan: the plan for these operators.
        devices: the device of each of ``Tag.GPU`` and ``Tag.CPU``. Both may be the CPU.
    """
    return _PlacedGraphBuilder(graph, plan, devices).build()


class _PlacedGraphBuilder:
    """Builds the placed graph node by node."""

    def __init__(self, graph: fx.GraphModule, plan: PlacementPlan, devices: Mapping[Tag, Device]) -> None:
        self._graph, self._plan, self._devices = graph, plan, devices
        self._placed = fx.Graph()
        self._values: dict[tuple[fx.Node, Tag], fx.Node] = {}  # by given node and processor
        self._parts: dict[str, Any] = {}  # modules and constants by path

    def build(self) -> fx.GraphModule:
        """Returns the placed graph."""
        copies: dict[str, list[Copy]] = {}
        for each in self._plan.copies:
            copies.setdefault(each.before, []).append(each)
        nodes_by_name = {node.name: node for node in self._graph.graph.nodes}
        for node in self._graph.graph.nodes:
            if node.op == "get_attr":
                continue
            tag = self._plan.devices[node.name]
            for each in copies.get(node.name, ()):
                self._add_copy(nodes_by_name[each.producer], each.target)
            self._values[node, tag] = self._add_operator(node, tag)
        placed = fx.GraphModule(self._parts, self._placed, "Placed")
        fuse_convolutions(placed)  # fuses those on the CPU
        return placed

    def _add_copy(self, producer: fx.Node, target: Tag) -> None:
        value = self._values[producer, self._plan.devices[producer.name]]
        self._values[producer, target] = self._placed.call_function(copy_to, (value, self._devices[target]))

    def _add_operator(self, node: fx.Node, tag: Tag) -> fx.Node:
        placed = self._placed.node_copy(node, lambda source: self._value_on(source, tag))
        if node.op == "call_module":
            placed.target = self._part(str(node.target), tag, self._graph.get_submodule(str(node.target)))
        if isinstance(
            node.kwargs.get("device"), torch.device
        ):  # an exported graph names the device of tensors that it makes
            placed.update_kwarg("device", torch.device(self._devices[tag]))
        return placed

    def _value_on(self, source: fx.Node, tag: Tag) -> fx.Node:
        """Returns the placed graph's node of a value on a processor.

        Each processor that needs a constant has its own. A value without tensors has one node for both processors.
        """
        if source.op != "get_attr":
            producer_tag = self._plan.devices[source.name]
            return self._values.get((source, tag)) or self._values[source, producer_tag]
        if (source, tag) not in self._values:
            constant = operator.attrgetter(str(source.target))(self._graph)
            self._values[source, tag] = self._placed.get_attr(self._part(str(source.target), tag, constant))
        return self._values[source, tag]

    def _part(self, path: str, tag: Tag, part: nn.Module | Tensor) -> str:
        """Returns the path of a module or constant on a processor. If both processors are the CPU, they share it."""
        device = self._devices[tag]
        name = f"on_{device.type}.{path}"
        if name not in self._parts:
            if isinstance(part, Tensor):
                self._parts[name] = part.to(device)
            else:
                tensors = (*part.parameters(), *part.buffers())
                moves = any(tensor.device.type != device.type for tensor in tensors)
                self._parts[name] = copy.deepcopy(part).to(device) if moves else part
        return name
