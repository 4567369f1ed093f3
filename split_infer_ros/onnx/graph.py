"""An ONNX model in memory, or a part of one."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from split_infer_ros.buffers.host_arrays import DType, dtype_named
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.checked_files import read_checked

if TYPE_CHECKING:
    import onnx

_DTYPES = {  # name in onnx.TensorProto -> name of the dtype
    "FLOAT": "float32",
    "FLOAT16": "float16",
    "BFLOAT16": "bfloat16",
    "DOUBLE": "float64",
    **{name: name.lower() for name in ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64")},
}


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    """An input or output of a graph.

    Attributes:
        name: the tensor's name in the graph.
        shape: shape of a batch; None for a dimension of symbolic or unknown length. The first dimension is the batch.
        dtype: dtype of the elements.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: DType

    def __str__(self) -> str:
        lengths = ", ".join("?" if length is None else str(length) for length in self.shape)
        return f"{self.name} {self.dtype.name} ({lengths})"


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """Facts about a graph that can be read without its nodes. Attributes mean the same as in ``OnnxGraph``."""

    inputs: tuple[OnnxTensor, ...]
    outputs: tuple[OnnxTensor, ...]
    digest: str
    operators: Mapping[str, int]
    has_known_shape: tuple[bool, ...]

    def as_json(self) -> dict[str, Any]:
        """Returns the facts as values that JSON can hold."""
        sides = {side: list(map(_written, getattr(self, side))) for side in ("inputs", "outputs")}
        return sides | {name: getattr(self, name) for name in ("digest", "operators", "has_known_shape")}

    @classmethod
    def of_json(cls, written: Mapping[str, Any]) -> GraphFacts:
        """Returns the facts that ``as_json`` wrote."""
        inputs, outputs = (tuple(map(_parsed, written[side])) for side in ("inputs", "outputs"))
        return cls(inputs, outputs, written["digest"], written["operators"], tuple(written["has_known_shape"]))


class OnnxGraph:
    """An ONNX model, or a part of one. It never changes.

    Args:
        name: name of the file or part, for messages.
        proto: the model. It holds its weights, unless ``path`` is given. The caller must not change it any more.
        path: a file that holds the model, and names another file for its weights; None if there is no such file.

    Attributes:
        inputs: the tensors that a caller passes, in order. Weights are not inputs.
        outputs: the tensors that the graph gives, in order.
        content: a file with the serialised model, in the format of ``checked_files``; None if there is none.

    Raises:
        ConfigurationError: an input or output is no tensor, or its elements are of a type that is not supported.
    """

    _read: Callable[[], OnnxGraph]

    def __init__(self, name: str, proto: onnx.ModelProto, path: Path | None = None) -> None:
        self.name, self.path, self.proto = name, path, proto
        self.content: Path | None = None
        weights = {tensor.name for tensor in proto.graph.initializer}
        weights |= {tensor.values.name for tensor in proto.graph.sparse_initializer}
        self.inputs = tuple(self._tensor(value) for value in proto.graph.input if value.name not in weights)
        self.outputs = tuple(map(self._tensor, proto.graph.output))

    @classmethod
    def described(cls, name: str, facts: GraphFacts, read: Callable[[], OnnxGraph], content: Path | None) -> OnnxGraph:
        """Returns a graph from facts. The model itself is read only when somebody needs more than the facts.

        Args:
            name: the graph's name.
            facts: the graph's facts.
            read: makes the graph if ``content`` is missing or damaged. Its errors reach the caller that needs more than
                facts. If it makes a graph with another digest, that caller gets a ConfigurationError.
            content: a file with the serialised model, as in the attributes of the class.
        """
        graph = cls.__new__(cls)
        graph.name, graph.path, graph.content = name, None, content
        graph.inputs, graph.outputs = facts.inputs, facts.outputs
        graph.digest, graph.operators, graph.has_known_shape = facts.digest, facts.operators, facts.has_known_shape
        graph._read = read
        return graph

    @property
    def facts(self) -> GraphFacts:
        """The facts that can be read without the graph's nodes."""
        return GraphFacts(self.inputs, self.outputs, self.digest, self.operators, self.has_known_shape)

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """The model. It must not be changed. A graph that ``described`` made reads it at the first access.

        Raises:
            ConfigurationError: the model has changed since the facts were found out.
        """
        content = self.read_content()
        if content is None:
            graph = self._read()
            if graph.digest != self.digest:
                raise ConfigurationError(f"{self.name} has changed since it was loaded; load the model again.")
            return graph.proto
        import onnx

        return onnx.load_model_from_string(content)

    def read_content(self) -> bytes | None:
        """Returns the serialised model, or None if no file has it. Removes the file if it is damaged."""
        if self.content is None:
            return None
        with suppress(OSError):
            content = read_checked(self.content)
            if content is not None:
                return bytes(content)
            self.content.unlink()
        return None

    @cached_property
    def operators(self) -> Mapping[str, int]:
        """How many nodes of each operator the graph has, without the nodes in subgraphs."""
        return Counter(str(node.op_type) for node in self.proto.graph.node)

    @cached_property
    def has_known_shape(self) -> tuple[bool, ...]:
        """For each output, whether its first dimension is the input's batch and all other lengths are known."""
        names = {tensor.name for tensor in self.inputs[:1]}
        batch = next((_first_symbol(value) for value in self.proto.graph.input if value.name in names), "")
        return tuple(
            self._is_known(tensor.shape, batch, _first_symbol(value))
            for tensor, value in zip(self.outputs, self.proto.graph.output, strict=True)
        )

    @cached_property
    def metadata(self) -> Mapping[str, str]:
        """The exporter's notes about the model, by key."""
        return MappingProxyType({entry.key: entry.value for entry in self.proto.metadata_props})

    @cached_property
    def digest(self) -> str:
        """Hexadecimal digits that identify the whole content, including weights in the model itself."""
        content = hashlib.sha256()
        _hash_message(content, self.proto)
        return content.hexdigest()

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, tensors)) for tensors in (self.inputs, self.outputs))
        return f"OnnxGraph({self.name}: {inputs} -> {outputs})"

    def _is_known(self, lengths: Sequence[int | None], batch: str, first: str) -> bool:
        if not lengths or None in lengths[1:]:
            return False
        if lengths[0] is not None:
            return bool(self.inputs) and self.inputs[0].shape[:1] == lengths[:1]
        return bool(batch) and first == batch

    def _tensor(self, value: onnx.ValueInfoProto) -> OnnxTensor:
        if not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value") or "value of no type"
            raise ConfigurationError(f"{self.name}: '{value.name}' is a {kind.removesuffix('_type')}, not a tensor.")
        tensor = value.type.tensor_type
        dtype = dtype_of(tensor.elem_type)
        if dtype is None:
            raise ConfigurationError(
                f"{self.name}: '{value.name}' has elements of ONNX's type {tensor.elem_type}; "
                f"supported are: {', '.join(name.lower() for name in _DTYPES)}."
            )
        lengths = tuple(length or None for length in shape_of(tensor))  # some exporters write 0 for an open length
        return OnnxTensor(str(value.name), lengths, dtype)


def _written(tensor: OnnxTensor) -> list[Any]:
    return [tensor.name, tensor.shape, tensor.dtype.name]


def _parsed(written: Sequence[Any]) -> OnnxTensor:
    name, shape, dtype = written
    return OnnxTensor(name, tuple(shape), dtype_named(dtype))


def _first_symbol(value: onnx.ValueInfoProto) -> str:
    dimensions = value.type.tensor_type.shape.dim
    return str(dimensions[0].dim_param) if dimensions else ""


def dtype_of(element_type: int) -> DType | None:
    """Returns the dtype for an ``onnx.TensorProto.DataType``; None if there is none."""
    import onnx

    found = (dtype for name, dtype in _DTYPES.items() if getattr(onnx.TensorProto, name) == element_type)
    return next(map(dtype_named, found), None)


def shape_of(tensor: onnx.TypeProto.Tensor) -> tuple[int | None, ...]:
    """Returns a tensor's shape. Symbolic and unknown dimensions, for which some exporters write -1, are None."""
    return tuple(
        int(dimension.dim_value) if dimension.HasField("dim_value") and dimension.dim_value >= 0 else None
        for dimension in tensor.shape.dim
    )


def _hash_message(content: Any, message: Any) -> None:
    """Hashes a message field by field, because protobuf cannot serialise more than 2 GiB at once."""
    for field, value in message.ListFields():
        if field.message_type is None:
            _hash_bytes(content, f"{field.name} {value}".encode())
        elif field.name == "graph":
            _hash_message(content, value)
        else:
            for each in value if isinstance(value, Iterable) else (value,):
                _hash_bytes(content, field.name.encode())
                _hash_bytes(content, each.SerializeToString(deterministic=True))


def _hash_bytes(content: Any, data: bytes) -> None:
    content.update(len(data).to_bytes(8, "little"))
    content.update(data)
