"""Computes the values on which shapes depend, such as the target of a Reshape, for a given batch size.

ONNX's own shape inference follows few operators between a Shape and the node that uses its result. This module computes
the values of these operators instead, node by node. The inference can then treat the values as constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from split_infer_ros.onnx.nodes import copied, has_plain_domain, is_shape, replace_nodes, shape_span, subgraphs
from split_infer_ros.onnx.parts import MAX_ELEMENTS

if TYPE_CHECKING:
    import onnx

Shapes = Mapping[str, tuple[int | None, ...]]

_SHAPE_OPERANDS = {  # operator -> inputs that decide its result's shape
    "CenterCropPad": (1,),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}


class ShapeValues:
    """Computes the values of one model that shapes depend on.

    Args:
        proto: the model. At least its small constants have values. It is not changed.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        import onnx

        self._proto = proto
        self._nodes = list(proto.graph.node)
        self._needed = self._needed_nodes()
        self._values: dict[str, Any] = {}  # NumPy arrays, by name
        for tensor in proto.graph.initializer:
            if tensor.raw_data or not tensor.dims or 0 in tensor.dims or _has_values(tensor):
                self._values[str(tensor.name)] = onnx.numpy_helper.to_array(tensor)
        self._computed: set[int] = set()  # indices of nodes

    def compute(self, shapes: Shapes) -> bool:
        """Computes all values that can be computed from ``shapes``. Returns whether it computed any new value.

        Args:
            shapes: the shapes of the model's values, by name. A length is None if it is unknown.
        """
        found = False
        for index in self._needed:
            node = self._nodes[index]
            if index in self._computed:
                continue
            results = self._shape(node, shapes) if is_shape(node) else self._run(node)
            if results is not None:
                self._values |= zip(map(str, node.output), results, strict=False)
                self._computed.add(index)
                found = True
        return found

    def computed(self) -> dict[str, Any]:
        """Returns all computed arrays, by the names of the values."""
        names = [str(name) for index in sorted(self._computed) for name in self._nodes[index].output if name]
        return {name: self._values[name] for name in names}

    def as_constants(self) -> onnx.ModelProto:
        """Returns a copy of the model with computed values as constants."""
        import onnx

        made = copied(self._proto)
        replace_nodes(made.graph, (node for index, node in enumerate(self._nodes) if index not in self._computed))
        made.graph.initializer.extend(
            onnx.numpy_helper.from_array(value, name) for name, value in self.computed().items()
        )
        return made

    def _needed_nodes(self) -> list[int]:
        """Returns the indices of the nodes that compute shape-deciding values, in order."""
        wanted: set[str] = set()
        for node in self._nodes:
            operands = (1,) if node.op_type.startswith("Reduce") else _SHAPE_OPERANDS.get(node.op_type, ())
            wanted |= {str(node.input[index]) for index in operands if index < len(node.input)}
        needed = []
        for index in reversed(range(len(self._nodes))):
            node = self._nodes[index]
            is_computable = has_plain_domain(node) and not any(subgraphs(node))
            if is_computable and not wanted.isdisjoint(node.output):
                needed.append(index)
                wanted |= set() if is_shape(node) else set(map(str, node.input))
        return needed[::-1]

    def _shape(self, node: onnx.NodeProto, shapes: Shapes) -> list[Any] | None:
        lengths = shapes.get(str(node.input[0]))
        if lengths is None or None in lengths:
            return None
        return [np.array(lengths[shape_span(node)], np.int64)]

    def _run(self, node: onnx.NodeProto) -> list[Any] | None:
        """Runs a node. Returns None unless all inputs and results are known and small."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        names = [str(name) for name in node.input if name]
        inputs = {name: self._values[name] for name in names if name in self._values}
        if len(inputs) < len(set(names)) or any(value.size > MAX_ELEMENTS for value in inputs.values()):
            return None
        declared = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in inputs.items()
        ]
        outputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in node.output]
        graph = onnx.helper.make_graph([node], "value", declared, outputs)
        model = onnx.helper.make_model(graph, opset_imports=self._proto.opset_import, ir_version=self._proto.ir_version)
        try:
            results = list(map(np.asarray, ReferenceEvaluator(model).run(None, inputs)))
        except Exception:  # the evaluator lacks the operator, or lacks it for these types
            return None
        return results if all(0 <= value.size <= MAX_ELEMENTS for value in results) else None


def _has_values(tensor: onnx.TensorProto) -> bool:
    return any(getattr(tensor, field) for field in ("float_data", "int32_data", "int64_data", "double_data"))
