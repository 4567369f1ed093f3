"""The constants of an ONNX graph: their sizes, and the files beside the model that may hold them.

Each size is compared with the data in the file before memory is allocated for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx.nodes import num_elements, subgraphs
from split_infer_ros.runtime.beside import folders_of, lies_in
from split_infer_ros.runtime.shortage import host_bytes_free, shortage
from split_infer_ros.runtime.user_files import is_regular

if TYPE_CHECKING:
    import onnx

MAX_WEIGHT_BYTES = 2**34  # limit for all files beside the model together
MAX_DIMENSIONS = 64
SMALL_BYTES = 1024  # ``structure_of`` keeps constants up to this size
_BITS = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}  # types with several elements in a byte
_COMPLEX = ("COMPLEX64", "COMPLEX128")


class _Place(NamedTuple):
    """Where the data of a constant lies: some bytes of a file beside the model."""

    tensor: Any
    file: Path
    offset: int
    length: int


def load_constants(proto: onnx.ModelProto, path: Path) -> None:
    """Reads the constants that lie in other files into the model. Checks the sizes of all constants.

    Args:
        proto: the model. It is changed in place. Its functions must be inlined.
        path: the model's file.

    Raises:
        ConfigurationError: a constant is not where the model says, does not fit its shape, or is too large.
    """
    import onnx

    for tensor in _constants(proto):
        _check_shape(tensor, path)
    places = _places(proto, path)
    _check_total(places, path)
    for place in places:
        with place.file.open("rb") as stream:
            stream.seek(place.offset)
            place.tensor.raw_data = stream.read(place.length)
        place.tensor.data_location = onnx.TensorProto.DEFAULT
        place.tensor.ClearField("external_data")
    for tensor in _constants(proto):
        _check_data(tensor, path)


def find_external(proto: onnx.ModelProto, path: Path) -> dict[Path, int]:
    """Returns the files that hold constants, and how many bytes the model takes from each. Reads none of them.

    Raises:
        ConfigurationError: a constant is not where the model says.
    """
    found: dict[Path, int] = {}
    for place in _places(proto, path):
        found[place.file] = found.get(place.file, 0) + place.length
    return found


def _places(proto: onnx.ModelProto, path: Path) -> list[_Place]:
    import onnx

    external, folders = onnx.TensorProto.EXTERNAL, folders_of(path)
    return [_place_of(tensor, path, folders) for tensor in _constants(proto) if tensor.data_location == external]


def _place_of(tensor: onnx.TensorProto, path: Path, folders: Sequence[Path]) -> _Place:
    """Returns where a constant lies.

    The model's path may be a link. The function looks for the constant's file in the folder of each link in turn. With
    all links followed, the file must lie in one of these folders. A file of weights may therefore be a link only if the
    model is a link too, and both lead to the same folder.
    """
    facts = {entry.key: entry.value for entry in tensor.external_data}
    location = facts.get("location", "")
    files = [folder / location for folder in folders]
    file = next((file for file in files if is_regular(file)), files[0])
    place = PurePosixPath(location)
    if not location or place.is_absolute() or ".." in place.parts or not lies_in(file, folders):
        raise ConfigurationError(
            f"{path} takes the weight '{tensor.name}' from '{location:.200}', which is not in its folder {folders[0]}; "
            "files of weights lie beside the model."
        )
    try:
        size = file.stat().st_size if is_regular(file) else None
        offset = int(facts.get("offset", 0))
        length = int(facts.get("length", _num_bytes(tensor)))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} is damaged: where '{tensor.name}' lies is unreadable ({error}).") from error
    if size is None:
        raise ConfigurationError(f"{path} takes the weight '{tensor.name}' from {file}, and there is no such file.")
    if offset < 0 or length < 0 or offset + length > size:
        raise ConfigurationError(
            f"{path} takes the weight '{tensor.name}' from bytes {offset} to {offset + length} of {file}, which has "
            f"{size}: the two files are not of one model."
        )
    return _Place(tensor, file, offset, length)


def _check_total(places: list[_Place], path: Path) -> None:
    """Refuses more weights than fit into memory. Constants that name the same bytes of a file each need memory."""
    total = sum(place.length for place in places)
    if total > MAX_WEIGHT_BYTES:
        raise ConfigurationError(f"{path} has more than {MAX_WEIGHT_BYTES:,} bytes of weights, which is the limit.")
    free = host_bytes_free()
    if total > free:
        raise ConfigurationError(f"{path} cannot be read: {shortage(total, free, 'the host')}.")


def _check_shape(tensor: onnx.TensorProto, path: Path) -> None:
    if len(tensor.dims) > MAX_DIMENSIONS or any(length < 0 for length in tensor.dims):
        raise ConfigurationError(
            f"{path} is damaged: the constant '{tensor.name}' has the shape ({_text(tensor)}), which no tensor has; "
            "export the model again."
        )


def _check_data(tensor: onnx.TensorProto, path: Path) -> None:
    """Checks that a constant has as much data as its shape needs."""
    import onnx

    try:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type)
        if tensor.HasField("raw_data"):
            wanted, found = _num_bytes(tensor), len(tensor.raw_data)
        else:
            count = num_elements(tensor)
            wanted = 2 * count if kind in _COMPLEX else -(-count * _BITS[kind] // 8) if kind in _BITS else count
            found = len(getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type)))
    except (KeyError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is damaged: the constant '{tensor.name}' is of the unknown type {tensor.data_type}."
        ) from error
    if wanted != found:
        unit = "bytes" if tensor.HasField("raw_data") else "values"
        raise ConfigurationError(
            f"{path} is damaged: the constant '{tensor.name}' has {found:,} {unit}, and its shape "
            f"({_text(tensor)}) needs {wanted:,}."
        )


def _text(tensor: onnx.TensorProto) -> str:
    """Returns a shape as text. Dimensions after the eighth are left out."""
    return ", ".join(map(str, tensor.dims[:8])) + (", ..." if len(tensor.dims) > 8 else "")


def _num_bytes(tensor: onnx.TensorProto) -> int:
    """Returns how many bytes a constant has.

    Raises:
        ValueError: the constant's type is unknown, or has no size.
    """
    import onnx

    kind = onnx.TensorProto.DataType.Name(tensor.data_type)
    if kind in _BITS:
        return -(-num_elements(tensor) * _BITS[kind] // 8)
    if kind in ("UNDEFINED", "STRING"):
        raise ValueError(f"{kind} has no size")
    return num_elements(tensor) * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


@contextmanager
def structure_of(proto: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """Yields a model with its large constants emptied. Restores the constants when the context ends.

    Code that only looks at a model's structure then copies no weights. Protobuf copies at most 2 GB.
    """
    taken = []
    try:
        for tensor in _constants(proto):
            if len(tensor.raw_data) > SMALL_BYTES:
                taken.append((tensor, tensor.raw_data, list(tensor.dims)))
                tensor.raw_data, tensor.dims[:] = b"", [0]
        yield proto
    finally:
        for tensor, data, dims in taken:
            tensor.raw_data, tensor.dims[:] = data, dims


def _constants(proto: onnx.ModelProto) -> Iterator[Any]:
    """Yields every constant of a model, including the constants in its functions and in subgraphs."""
    pending: deque[Any] = deque((proto.graph, *proto.functions))  # graphs, and functions, which have only nodes
    while pending:
        graph = pending.popleft()
        yield from getattr(graph, "initializer", ())
        sparse = list(getattr(graph, "sparse_initializer", ()))
        for node in graph.node:
            pending += subgraphs(node)
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors) if attribute.HasField("t") else attribute.tensors
                sparse += attribute.sparse_tensors
                sparse += [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
        for each in sparse:
            yield from (each.values, each.indices)
