"""Replaces modules that onnx2torch makes of ONNX operators by the operations that they compute.

A module of onnx2torch takes its options, such as the target of a Reshape, as tensors and reads them in every call. On a
GPU, each reading waits for the device. This module traces them with the options' values, and plain operations are left.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from split_infer_ros.buffers.host_arrays import is_floating
from split_infer_ros.onnx.shapes import BATCH, ValueShape
from split_infer_ros.torch_graphs.batch_sizes import read_sizes_where_needed
from split_infer_ros.torch_graphs.own_thread_tracer import OwnThreadTracer

OUTPUT = "split_infer_ros/output"  # begins the name of a node that passes a value on as an output
ONNX_VALUE = "onnx_value"  # key in a node's meta: the name of the ONNX value that the node computes, wholly or in part

_MODULES_OF_TORCH = "torch.nn."


class Inliner(OwnThreadTracer):
    """Makes a graph of plain operations and modules of ``torch.nn``.

    A module of onnx2torch stays if its operations depend on values.

    Args:
        converted: onnx2torch's result, with the mapping to ONNX values attached. The caller must not use it any more.
        inputs: the names of the ONNX values that the graph takes.
        shapes: shapes of the ONNX values, by name.
    """

    def __init__(self, converted: fx.GraphModule, inputs: Sequence[str], shapes: Mapping[str, ValueShape]) -> None:
        super().__init__()
        self._converted, self._shapes = converted, shapes
        self._inputs = list(inputs)  # inputs that the trace has not reached yet
        self._images: fx.Proxy | None = None  # the first input, known once the trace has begun
        self._batched: set[fx.Node] = set()  # nodes with values that have the batch in front
        self._constants: dict[str, Tensor] = {}  # by ONNX value: onnx2torch copies a weight for each of its uses

    def inlined(self) -> fx.GraphModule:
        """Returns the new graph. Its floating-point constants are parameters."""
        graph = self.trace(self._converted)
        join_silu(self._converted, graph)
        read_sizes_where_needed(graph, self._batched)
        _give_in_order(graph)
        for node in graph.find_nodes(op="call_function", target=operator.getitem):
            if isinstance(node.args[1], list):
                node.update_arg(1, tuple(node.args[1]))  # torch takes no list of slices
        made = fx.GraphModule(self._converted, graph)
        made.graph.eliminate_dead_code()
        made.recompile()
        for node in made.graph.find_nodes(op="get_attr"):
            path, _, name = str(node.target).rpartition(".")
            owner = made.get_submodule(path)
            value = getattr(owner, name)
            if value.is_floating_point() and not isinstance(value, nn.Parameter):
                delattr(owner, name)
                owner.register_parameter(name, nn.Parameter(value, requires_grad=False))
        return made

    def call_own(
        self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Handles a call of a module.

        If all inputs are constants, the module runs, and its result is a constant. A module of ``torch.nn`` is recorded
        as a call. A module of onnx2torch is replaced by its operations, or recorded as a call if they depend on values.
        """
        mapping: Any = getattr(module, "onnx_mapping", None)
        if mapping is None:  # a module within a module
            return super().call_own(module, forward, args, kwargs)
        args = tuple(self._shared(value, name) for value, name in zip(args, mapping.inputs, strict=False))
        if not any(isinstance(each, fx.Proxy) for each in (*args, *kwargs.values())):
            return forward(*args, **kwargs)
        if mapping.outputs[0].startswith(OUTPUT):
            return args[0]
        last = next(iter(reversed(self.graph.nodes)))
        outputs: list[Any] = []
        if self._is_known_expansion(module, mapping.outputs[0]):
            outputs = [self._expanded(args[0], mapping.outputs[0])]
        elif not type(module).__module__.startswith(_MODULES_OF_TORCH):
            try:
                outputs = _outputs(forward(*args, **kwargs), len(mapping.outputs))
            except Exception:  # it reads values, or something else that a proxy does not know
                outputs = []
        if not outputs or not all(isinstance(each, (fx.Proxy, Tensor)) for each in outputs):
            called = self.create_proxy("call_module", self.path_of_module(module), args, kwargs)
            outputs = _outputs(called, len(mapping.outputs))
        for node in takewhile(lambda node: node is not last, reversed(self.graph.nodes)):
            node.meta[ONNX_VALUE] = mapping.outputs[0]
        known = [self._known(value, name) for value, name in zip(outputs, mapping.outputs, strict=False)]
        return known if len(known) > 1 else known[0]

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Returns a proxy for a node. The proxy of an input knows the input's shape."""
        if node.op != "placeholder":
            return super().proxy(node)
        made: fx.Proxy = self._known(super().proxy(node), self._inputs.pop(0))
        if self._images is None:
            self._images = made
        return made

    def create_arg(self, a: Any) -> Any:
        """Converts an argument for a node. Single whole numbers become plain ints, which no call has to read."""
        is_whole = isinstance(a, Tensor) and not a.dim() and a.dtype in (torch.int32, torch.int64)
        return int(a) if is_whole or isinstance(a, np.integer) else super().create_arg(a)

    def _is_known_expansion(self, module: nn.Module, name: str) -> bool:
        """Returns whether a module is an Expand to a shape that is known except for the batch."""
        from onnx2torch.node_converters.expand import OnnxExpand

        return isinstance(module, OnnxExpand) and name in self._shapes and self._shapes[name].is_known

    def _expanded(self, value: Any, name: str) -> fx.Proxy:
        """Expands a value to the known shape of an ONNX value. The module would read the shape from a tensor."""
        batch_size = self.create_proxy("call_method", "size", (self._images, 0), {})
        lengths = [batch_size if length == BATCH else length for length in self._shapes[name].dimensions]
        return self.create_proxy("call_method", "expand", (value, *lengths), {})

    def _shared(self, value: Any, name: str) -> Any:
        return self._constants.setdefault(name, value) if isinstance(value, Tensor) and name else value

    def _known(self, value: Any, name: str) -> Any:
        """Returns a proxy that knows the shape and dtype of its ONNX value, as far as they are known."""
        if not isinstance(value, fx.Proxy):
            return value
        if not isinstance(value, _KnownProxy):  # else the operator returned its input
            value.node.meta[ONNX_VALUE] = name
        known = self._shapes.get(name)
        if known is not None and known.dimensions[:1] == (BATCH,):
            self._batched.add(value.node)
        return _KnownProxy(value.node, self, known)


class _KnownProxy(fx.Proxy):
    """A proxy that knows its value's dtype, number of dimensions, and all lengths except the batch.

    Args:
        node: the node that computes the value.
        tracer: records operations on the proxy.
        known: the value's shape and dtype; None if they are unknown.
    """

    def __init__(self, node: fx.Node, tracer: fx.Tracer, known: ValueShape | None) -> None:
        super().__init__(node, tracer)
        self._known = known

    def dim(self) -> Any:
        """Returns the value's number of dimensions."""
        return super().__getattr__("dim")() if self._known is None else len(self._known.dimensions)

    def is_floating_point(self) -> Any:
        """Returns whether the elements are floating-point numbers."""
        dtype = self._known.dtype if self._known else None
        return super().__getattr__("is_floating_point")() if dtype is None else is_floating(dtype)

    @property
    def shape(self) -> Any:
        """The lengths of the dimensions: numbers, or proxies for unknown lengths."""
        if self._known is None:
            return super().__getattr__("shape")
        size = super().__getattr__("size")
        return tuple(
            length if isinstance(length, int) else size(index) for index, length in enumerate(self._known.dimensions)
        )


def _give_in_order(graph: fx.Graph) -> None:
    """Adds nodes at the end that give the outputs in order, if the graph computes them in another order.

    The values that cross the split point ``output`` are then the ONNX model's outputs, in the same order.
    """
    end = graph.output_node()
    outputs = end.args[0] if isinstance(end.args[0], (tuple, list)) else [end.args[0]]
    order = {node: place for place, node in enumerate(graph.nodes)}
    places = [order[node] for node in outputs if isinstance(node, fx.Node)]
    if places == sorted(set(places)):
        return
    given = []
    with graph.inserting_before(end):
        for node in outputs:
            given.append(graph.call_method("view_as", (node, node)))
            given[-1].meta = dict(node.meta) if isinstance(node, fx.Node) else {}
    end.args = (tuple(given),)


def _outputs(result: Any, count: int) -> list[Any]:
    """Returns an operator's results as a list, also if it has a single one."""
    if isinstance(result, (tuple, list)):
        return list(result[:count])
    return [result[index] for index in range(count)] if count > 1 and result is not None else [result]


def join_silu(root: nn.Module, graph: fx.Graph) -> None:
    """Replaces each product of a value and its own sigmoid by a module SiLU, in place. Older ONNX has no such operator.

    Args:
        root: the graph's module. It gets the new modules.
        graph: the graph. It is changed.
    """
    for number, product in enumerate(graph.find_nodes(op="call_function", target=torch.mul)):
        for value, factor in (product.args, product.args[::-1]):
            if not isinstance(factor, fx.Node) or factor.op != "call_module" or len(factor.users) > 1:
                continue
            if isinstance(root.get_submodule(str(factor.target)), nn.Sigmoid) and factor.args == (value,):
                name = f"silu_{number}"
                root.add_module(name, nn.SiLU())
                with graph.inserting_before(product):
                    joined = graph.call_module(name, (value,))
                joined.meta = dict(product.meta)
                product.replace_all_uses_with(joined)
                graph.erase_node(product)
                graph.erase_node(factor)
                break
