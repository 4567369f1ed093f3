"""Rewrites the graphs of several models of one architecture as one graph. Each operation computes all models.

The paper on kernel merge and fusion (001, §II-B) fuses kernels. This module fuses operations, one level above kernels.
In the new graph, a convolution has a group of channels for each model. A linear layer is one batched product of
matrices. So one launch does the work of several. Activations and poolings stay as they are. Every other operation runs
under ``torch.vmap``.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.split.partitions import extract, outputs_of
from split_infer_ros.split.stacked_modules import PerModel, StackedLinear, has_groups_of_channels, stack_channels
from split_infer_ros.split.stacked_rules import ARITHMETIC, ELEMENTWISE, SPATIAL, first_flattened, joined_dimension
from split_infer_ros.torch_graphs.value_sizes import TensorSize, value_sizes


class _Place(enum.Enum):
    """Where the models lie in a value."""

    SHARED = enum.auto()  # one value for all models, which may be no tensor
    CHANNELS = enum.auto()  # (n, m * c, ...)
    OWN = enum.auto()  # (n, m, c, ...), or several such tensors


@dataclass(frozen=True, slots=True)
class _Value:
    node: fx.Node
    place: _Place


def stack_graphs(parts: Sequence[fx.GraphModule], image_shape: tuple[int, int, int]) -> fx.GraphModule:
    """Returns the graphs of m models as one graph with the weights of all.

    The graph maps images (n, m * C, H, W) to a tuple of tensors (n, m, ...). Each model has n images. The images of
    the m models lie beside each other in the channels.

    Args:
        parts: the graphs of at least two models on the CPU. They differ only in their weights, and are not changed.
        image_shape: (C, H, W) of one model's images.

    Raises:
        ConfigurationError: an operation cannot be computed for all models at once.
    """
    return _Stacker(parts, image_shape).stack()


class _Stacker:
    def __init__(self, parts: Sequence[fx.GraphModule], image_shape: tuple[int, int, int]) -> None:
        self._parts = parts
        self._single = value_sizes(parts[0], (2, *image_shape))  # the values of one model, for two images
        self._graph = fx.Graph()
        self._modules = nn.Module()
        self._values: dict[fx.Node, _Value] = {}
        self._placed: dict[tuple[fx.Node, _Place], fx.Node] = {}
        self._names: dict[str, str] = {}  # names of new modules, by the name of what each replaces

    def stack(self) -> fx.GraphModule:
        nodes = [list(part.graph.nodes) for part in self._parts]
        for same in zip(*nodes, strict=True):
            if same[0].op not in ("get_attr", "output"):  # an operation brings its constants along
                self._values[same[0]] = self._stacked(same)
        outputs = outputs_of(nodes[0])
        for output in outputs:
            if not self._is_stacked(output):
                raise ConfigurationError(f"The result '{output.name}' is the same for all models: let each run alone.")
        self._graph.output(tuple(self._in_place(output, _Place.OWN) for output in outputs))
        return fx.GraphModule(self._modules, self._graph)

    def _stacked(self, same: Sequence[fx.Node]) -> _Value:
        """Returns the value of an operation for all models. ``same`` is its node in each model's graph."""
        node = same[0]
        if node.op == "placeholder":
            return _Value(self._graph.placeholder(node.name), _Place.CHANNELS)
        inputs = [each for each in node.all_input_nodes if each.op != "get_attr"]
        has_constants = len(inputs) < len(node.all_input_nodes)
        if not has_constants and node.op != "call_module" and not any(map(self._is_stacked, inputs)):
            return self._repeated(node, _Place.SHARED)
        value = None if has_constants else self._by_rule(same, inputs)
        if value is not None:
            return value
        if not _is_tensors(self._single[node]):
            kind = type(self._single[node]).__name__
            raise ConfigurationError(
                f"'{node.name}' gives no tensor ({kind}) but depends on the model: let each model run alone."
            )
        singles = [
            extract(
                part, [each], inputs=[found for found in each.all_input_nodes if found.op != "get_attr"], outputs=[each]
            )
            for part, each in zip(self._parts, same, strict=True)
        ]
        are_stacked = list(map(self._is_stacked, inputs))
        return self._call(node, lambda: PerModel(singles, are_stacked), inputs, _Place.OWN)

    def _by_rule(self, same: Sequence[fx.Node], inputs: Sequence[fx.Node]) -> _Value | None:
        """Returns the value of an operation that has a rule of its own; None if ``torch.vmap`` computes it."""
        node, modules = same[0], self._modules_of(same)
        kind = type(modules[0]) if modules else node.target
        if not all(map(self._is_stacked, inputs)):
            return None
        if kind is operator.getitem and not isinstance(self._single[inputs[0]], TensorSize):
            return self._repeated(node, _Place.OWN)  # one of several tensors
        shapes = [self._single[each].shape for each in inputs if isinstance(self._single[each], TensorSize)]
        if len(shapes) < len(inputs):
            return None
        rank = len(shapes[0])
        if rank == 4 and modules and has_groups_of_channels(modules[0]):
            return self._call(node, lambda: stack_channels(modules), inputs, _Place.CHANNELS)
        if kind is nn.Linear and rank > 1:
            layers: Any = modules
            return self._call(node, lambda: StackedLinear(layers), inputs, _Place.OWN)
        if len(inputs) == 1 and kind in ELEMENTWISE | ARITHMETIC:  # arithmetic with a number
            return self._repeated(node, self._values[inputs[0]].place)
        if kind in ARITHMETIC and rank == len(shapes[1]) > 1:
            # if models lie in the channels, a single channel would not spread over its own model's channels
            return self._repeated(node, _Place.CHANNELS if shapes[0][1] == shapes[1][1] else _Place.OWN)
        if (rank == 4 and kind in SPATIAL) or first_flattened(node, modules) >= 1:
            return self._repeated(node, _Place.CHANNELS)
        if kind is torch.cat and rank > 1 and joined_dimension(node) == 1:
            tensors = [self._in_place(each, _Place.OWN) for each in inputs]
            return _Value(self._graph.call_function(torch.cat, (tensors, 2)), _Place.OWN)
        if kind in (getattr, "size", "dim") and not isinstance(self._single[node], TensorSize):
            return self._size(node, inputs[0])
        return None

    def _modules_of(self, same: Sequence[fx.Node]) -> list[nn.Module]:
        """Returns the module that a node calls in each model; none if it calls no module."""
        if same[0].op != "call_module":
            return []
        return [part.get_submodule(str(node.target)) for part, node in zip(self._parts, same, strict=True)]

    def _is_stacked(self, node: fx.Node) -> bool:
        return node in self._values and self._values[node].place is not _Place.SHARED

    def _in_place(self, node: fx.Node, place: _Place) -> fx.Node:
        """Returns an operand with its models in ``place``. A value that all models share is not moved."""
        value = self._values[node]
        if place is _Place.SHARED or value.place in (place, _Place.SHARED):
            return value.node
        if (node, place) not in self._placed:
            move = ("flatten", (1, 2)) if place is _Place.CHANNELS else ("unflatten", (1, (len(self._parts), -1)))
            self._placed[node, place] = self._graph.call_method(move[0], (value.node, *move[1]))
        return self._placed[node, place]

    def _repeated(self, node: fx.Node, place: _Place) -> _Value:
        """Repeats an operation on operands with their models in ``place``. Its value has them there too."""
        copied = self._graph.node_copy(node, lambda operand: self._in_place(operand, place))
        if node.op == "call_module":
            copied.target = self._named(str(node.target), lambda: self._parts[0].get_submodule(str(node.target)))
        return _Value(copied, place)

    def _call(self, node: fx.Node, make: Callable[[], nn.Module], inputs: Sequence[fx.Node], place: _Place) -> _Value:
        """Calls a new module on operands with their models in ``place``, and returns its value.

        Args:
            node: the node that the module replaces. If several nodes call one module of the model, they share the new
                one.
            make: makes the module.
            inputs: the operands.
            place: where the models lie in the operands and in the value.
        """
        name = self._named(str(node.target) if node.op == "call_module" else node.name, make)
        operands = tuple(self._in_place(each, place) for each in inputs)
        return _Value(self._graph.call_module(name, operands), place)

    def _named(self, replaced: str, make: Callable[[], nn.Module]) -> str:
        """Returns the name of the module that replaces another one. It is made at the first call."""
        if replaced not in self._names:
            self._names[replaced] = f"stacked_{len(self._names)}"
            self._modules.add_module(self._names[replaced], make())
        return self._names[replaced]

    def _size(self, node: fx.Node, tensor: fx.Node) -> _Value:
        """Returns what ``size``, ``dim`` or an attribute such as ``shape`` is for one model."""
        own = self._in_place(tensor, _Place.OWN)
        arguments = node.args[1:] if node.target is getattr else (str(node.target), *node.args[1:])
        return _Value(self._graph.call_function(size_of_one, (own, *arguments)), _Place.SHARED)


def size_of_one(stacked: Tensor, name: str, *args: int) -> Any:
    """Returns the size or another attribute that the tensor of a single model has.

    Args:
        stacked: (n, m, ...), the tensors of m models for n images.
        name: the name of the attribute, such as ``shape``, or of the method: ``size`` or ``dim``.
        args: the arguments of ``size``: a dimension, or nothing.
    """
    found = getattr(stacked[:, 0], name)
    return found(*args) if callable(found) else found


def _is_tensors(value: Any) -> bool:
    return isinstance(value, TensorSize) or (
        isinstance(value, (tuple, list))
        and any(isinstance(each, TensorSize) for each in value)
        and all(each is None or isinstance(each, TensorSize) for each in value)
    )
