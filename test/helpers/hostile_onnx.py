"""Damaged and hostile ONNX files, each from a seed. They need the package onnx."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx_files import network, ultralytics
from onnx_nets import branching, exported, net, resized

ODD = (0, -1, 1, 2, 3, 7, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
OPERATORS = (
    "Relu", "Neg", "Exp", "Shape", "Transpose", "NonZero", "Softmax", "Identity", "Sigmoid", "Flatten", "Loop", "If",
    "Scan", "Squeeze", "Cast", "TopK", "Resize", "LSTM", "ConvTranspose", "Gather", "Reshape", "RoiAlign", "EyeLike",
    "StringNormalizer", "SequenceAt", "EPContext", "QLinearConv", "Range", "Tile",
)  # fmt: skip
SIDE = 32
PLACES = ("../../etc/passwd", "/etc/passwd", "../w.bin", "link", "folder/link", "folder", "missing", "", ".", "pipe",
          "w.bin\0", "a" * 5000, "/dev/zero", "~/w.bin", "file:///etc/passwd", "\\..\\w.bin")  # fmt: skip

Damage = Callable[[random.Random, Any], None]


@cache
def whole_models() -> tuple[bytes, ...]:
    """Returns small models that load: detectors with a symbolic and a fixed batch, and classifiers, one with an If."""
    names = ultralytics(imgsz=f"[{SIDE}, {SIDE}]", names="['a', 'b', 'c']")
    models = [network(21, 7, side=SIDE, metadata=names, batch=batch, transposed=True) for batch in ("batch", 1)]
    classifier = branching().proto
    onnx.helper.set_model_props(classifier, {"names": str(dict(enumerate("abcdefgh")))})
    models += [classifier, resized().proto, exported(net(), by_dynamo=False, is_symbolic=True).proto]
    return tuple(model.SerializeToString() for model in models)


def whole_model(rng: random.Random, models: Sequence[bytes]) -> Any:
    return onnx.load_model_from_string(rng.choice(models))


def tensors(rng: random.Random, model: Any) -> Any:
    """Returns a random constant of the model; a new one if the model has none."""
    found = list(model.graph.initializer) or [model.graph.initializer.add(name="new", data_type=1)]
    return rng.choice(found)


def wrong_shapes(rng: random.Random, model: Any) -> None:
    """Changes dimensions of constants, inputs, outputs or inferred values."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        if rng.random() < 0.5:
            tensor = tensors(rng, model)
            dims = list(tensor.dims) or [1]
            dims[rng.randrange(len(dims))] = rng.choice(ODD)
            tensor.ClearField("dims")
            tensor.dims.extend(dims * rng.choice((1, 1, 1, 40)))
        else:
            value = rng.choice([*model.graph.input, *model.graph.output, *model.graph.value_info])
            shape = value.type.tensor_type.shape
            if shape.dim and rng.random() < 0.8:
                rng.choice(list(shape.dim)).dim_value = rng.choice(ODD)
            else:
                shape.dim.add(dim_value=rng.choice(ODD))


def huge_dimensions(rng: random.Random, model: Any) -> None:
    """Adds an operator with an enormous result. A constant sets the size of the result."""
    name, size = model.graph.output[0].name, rng.choice((2**20, 2**28, 2**31, 2**34, 2**40, 2**62))
    pick = rng.randrange(6)
    constant = [size] if pick < 3 else [1, 1, size, size]
    add_integers(model, "huge", constant)
    first = model.graph.input[0].name
    if pick == 0:
        nodes = [helper.make_node("ConstantOfShape", ["huge"], ["big"])]
    elif pick == 1:
        add_integers(model, "nought", 0, 1)
        nodes = [
            helper.make_node("Squeeze", ["huge"], ["end"]),
            helper.make_node("Range", ["nought", "end", "one"], ["i"]),
        ]
        model.graph.initializer.append(numpy_helper.from_array(np.array(1), "one"))
        model.graph.initializer[-2].CopyFrom(numpy_helper.from_array(np.array(0), "nought"))
        nodes.append(helper.make_node("Cast", ["i"], ["big"], to=TensorProto.FLOAT))
    elif pick == 2:
        nodes = [
            helper.make_node("ConstantOfShape", ["huge"], ["c"]),
            helper.make_node("CumSum", ["c", "huge"], ["big"]),
        ]
    else:
        operator = ("Expand", "Tile", "Resize")[pick - 3]
        inputs = [first, "", "", "huge"] if operator == "Resize" else [first, "huge"]
        nodes = [helper.make_node(operator, inputs, ["big"])]
    nodes.append(helper.make_node("ReduceMax", ["big"], ["most"], keepdims=0))
    nodes.append(helper.make_node("Add", ["original", "most"], [name]))
    for node in model.graph.node:
        for place, output in enumerate(node.output):
            if output == name:
                node.output[place] = "original"
    model.graph.node.extend(nodes)


def cycles(rng: random.Random, model: Any) -> None:
    """Lets nodes read results of later nodes, or their own results."""
    nodes = list(model.graph.node)
    for _ in range(rng.choice((1, 2, 5))):
        first, last = sorted((rng.randrange(len(nodes)), rng.randrange(len(nodes))))
        if nodes[first].input and nodes[last].output:
            nodes[first].input[rng.randrange(len(nodes[first].input))] = nodes[last].output[0]
    if rng.random() < 0.3:
        rng.shuffle(nodes)
        copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
        model.graph.ClearField("node")
        model.graph.node.extend(copies)


def nested(rng: random.Random, model: Any) -> None:
    """Adds an If or a Loop with subgraphs in subgraphs, or a Loop without an end."""
    depth = rng.choice((1, 2, 5, 15, 30))
    name = model.graph.output[0].name
    for node in model.graph.node:
        for place, output in enumerate(node.output):
            if output == name:
                node.output[place] = "original"
    value = helper.make_tensor_value_info
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.initializer.append(
        numpy_helper.from_array(np.array(rng.choice((1, 1, 2, 3, 3, 9, 2**40, 2**62))), "trips")
    )
    if rng.random() < 0.4:  # a loop
        body = helper.make_graph(
            [helper.make_node("Identity", ["yes"], ["goes_on"]), helper.make_node("Add", ["x", "x"], ["y"])],
            "body",
            [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), value("x", TensorProto.FLOAT, None)],
            [value("goes_on", TensorProto.BOOL, []), value("y", TensorProto.FLOAT, None)],
        )
        if rng.random() < 0.5:  # what it scans grows without a bound
            body.node.append(helper.make_node("Identity", ["x"], ["kept"]))
            body.output.append(value("kept", TensorProto.FLOAT, None))
        outputs = [name, *(["all"] if len(body.output) > 2 else [])]
        trips = rng.choice(("trips", "trips", "trips", ""))
        model.graph.node.append(helper.make_node("Loop", [trips, "yes", "original"], outputs, body=body))
        return
    inner = helper.make_graph([helper.make_node("Neg", ["original"], ["r0"])], "g0", [], [value("r0", 1, None)])
    for level in range(1, depth):
        plain = helper.make_graph([helper.make_node("Neg", ["original"], ["o"])], "o", [], [value("o", 1, None)])
        other = inner if depth < 9 else plain
        node = helper.make_node("If", ["yes"], [f"r{level}"], then_branch=inner, else_branch=other)
        inner = helper.make_graph([node], f"g{level}", [], [value(f"r{level}", 1, None)])
    model.graph.node.append(helper.make_node("If", ["yes"], [name], then_branch=inner, else_branch=inner))


def duplicates(rng: random.Random, model: Any) -> None:
    """Gives two values, constants or inputs the same name."""
    graph = model.graph
    for _ in range(rng.choice((1, 1, 3))):
        pick, nodes = rng.randrange(5), list(graph.node)
        one, other = rng.choice(nodes), rng.choice(nodes)
        if pick == 0:
            one.output[0] = other.output[0]
        elif pick == 1 and graph.initializer:
            one.output[0] = tensors(rng, model).name
        elif pick == 2:
            graph.initializer.append(tensors(rng, model))
        elif pick == 3:
            graph.input.append(graph.input[0])
        else:
            tensors(rng, model).name = rng.choice([graph.input[0].name, graph.output[0].name, one.output[0], ""])


def absent(rng: random.Random, model: Any) -> None:
    """Makes a constant larger than its data, removes its data, or gives it other data."""
    tensor = tensors(rng, model)
    pick = rng.randrange(5)
    if pick < 2:
        tensor.ClearField("dims")
        tensor.dims.extend(rng.choice(([2**31], [2**40], [2**20, 2**20], [2**62, 4], [2**32, 2**32], [10**9])))
    if pick in (1, 2):
        for field in ("raw_data", "float_data", "int64_data", "int32_data"):
            tensor.ClearField(field)
    elif pick == 3:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
    elif pick == 4:
        tensor.float_data.extend([1.0] * rng.choice((1, 1000)))


def beside(rng: random.Random, model: Any) -> None:
    """Declares that constants lie in other files: outside the folder, behind a link, or where no file is."""
    count = rng.choice((1, 1, 1, 3))
    for _ in range(count):
        tensor = tensors(rng, model)
        data, place = len(tensor.raw_data), rng.choice((*PLACES, "w.bin", "w.bin"))
        facts: dict[str, Any] = {"location": place}
        if rng.random() < 0.5:
            facts["offset"] = rng.choice((*ODD, "0x10", "", "١٢"))
        if rng.random() < 0.5:
            facts["length"] = rng.choice((*ODD, data, "much"))
        if rng.random() < 0.3:  # where it was, with another size
            tensor.ClearField("dims")
            tensor.dims.extend(rng.choice(([2**40], [0], [2**31, 4])))
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.ClearField("external_data")
        for key, value in facts.items():
            entry = tensor.external_data.add()
            entry.key, entry.value = key, str(value)


def functions(rng: random.Random, model: Any) -> None:
    """Adds functions that call themselves or each other, some of them exponentially often."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    depth, width = rng.choice(((1, 1), (2, 1), (2, 5), (3, 4), (5, 4), (8, 2), (40, 1), (500, 1), (12, 12)))
    for level in range(depth):
        callee = (level + 1) % depth if rng.random() < 0.5 else level + 1
        name = f"F{callee}" if callee < depth else "Neg"
        domain = "own" if callee < depth else ""
        calls = [helper.make_node(name, [f"x{i}"], [f"x{i + 1}"], domain=domain) for i in range(width)]
        model.functions.append(helper.make_function("own", f"F{level}", ["x0"], [f"x{width}"], calls, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    node = rng.choice([node for node in model.graph.node if node.input])
    node.CopyFrom(helper.make_node("F0", [node.input[0]], [node.output[0]], domain="own"))


def types(rng: random.Random, model: Any) -> None:
    """Changes the types of constants and values."""
    for _ in range(rng.choice((1, 1, 3))):
        kind = rng.choice((0, 1, 2, 6, 7, 8, 9, 10, 11, 14, 16, 17, 22, 23, 99, -1))
        if rng.random() < 0.5:
            tensors(rng, model).data_type = kind
        else:
            value = rng.choice([*model.graph.input, *model.graph.output])
            if rng.random() < 0.8:
                value.type.tensor_type.elem_type = kind
            else:
                value.type.sequence_type.elem_type.tensor_type.elem_type = kind % 24


def attributes(rng: random.Random, model: Any) -> None:
    """Changes, removes or doubles attributes of nodes."""
    nodes = [node for node in model.graph.node if node.attribute] or list(model.graph.node)
    for _ in range(rng.choice((1, 1, 2, 4))):
        node = rng.choice(nodes)
        if not node.attribute or rng.random() < 0.2:
            name = rng.choice(("axis", "axes", "group", "kernel_shape", "strides", "pads", "perm", "dilations", "to"))
            node.attribute.append(helper.make_attribute(name, rng.choice([rng.choice(ODD), [rng.choice(ODD)] * 2])))
            continue
        attribute = rng.choice(list(node.attribute))
        if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(ODD)
            if rng.random() < 0.3:
                attribute.ints.extend([rng.choice(ODD)] * rng.choice((1, 1000)))
        elif attribute.HasField("i"):
            attribute.i = rng.choice(ODD)
        elif rng.random() < 0.5:
            attribute.type = rng.randrange(15)
        else:
            attribute.name = rng.choice(("axis", "", "body"))


def metadata(rng: random.Random, model: Any) -> None:
    """Writes metadata that a careless reader might evaluate as code, or that is too large to read."""
    texts = (
        "__import__('os').abort()", "{0: open('ran', 'w')}", "[" * 100_000, "-" * 200_000 + "1", "(" * 90 + ")" * 90,
        "[0," * 90 + "]" * 90, "{" + "0:'a'," * 100_000 + "}", "9" * 5000, "['a', 'b', 'c']" + " " * 2**22, "\0", "{}",
        "{99999: 'a'}", "{2**40: 'a'}", "[640, 640]", "[1000000, 1000000]", "[-1, 0]", "1e999", "lambda: 0",
        "'a'" + "+'a'" * 5000, "not " * 50_000 + "1", "a" + ".a" * 100_000, "f" + "()" * 100_000,
    )  # fmt: skip
    model.ClearField("metadata_props")
    for key in ("names", "imgsz", "task", "description"):
        if rng.random() < 0.7:
            model.metadata_props.add(key=key, value=rng.choice(texts))
    if rng.random() < 0.5:
        for value in (*model.graph.input, *model.graph.output):
            for dim in value.type.tensor_type.shape.dim[2:]:
                dim.dim_param = "any"


def operators(rng: random.Random, model: Any) -> None:
    """Changes the operators of nodes, their domains, or the versions of the model to ones that do not exist."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        pick = rng.randrange(6)
        if pick == 0:
            model.opset_import[0].version = rng.choice((*ODD, 5, 13, 26, 99))
        elif pick == 1:
            model.ir_version = rng.choice((0, 1, 99, 2**40))
        elif pick == 2:
            rng.choice(list(model.graph.node)).domain = rng.choice(("com.microsoft", "ai.onnx.ml", "evil", "ai.onnx"))
        else:
            rng.choice(list(model.graph.node)).op_type = rng.choice(OPERATORS)


def constants(rng: random.Random, model: Any) -> None:
    """Changes values of constants, such as the target of a reshape, or weights to NaN."""
    for _ in range(rng.choice((1, 1, 3))):
        tensor = tensors(rng, model)
        try:
            values = numpy_helper.to_array(tensor).copy()
        except (TypeError, ValueError):
            continue
        if not values.size:
            continue
        odd = [np.nan, np.inf, 1e38, -1e38] if values.dtype.kind == "f" else [value % 2**62 for value in ODD]
        places = rng.choice((1, values.size))
        for place in rng.sample(range(values.size), min(places, values.size, 50)):
            values.reshape(-1)[place] = rng.choice(odd)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def add_integers(model: Any, name: str, values: Sequence[int] | int, *more: int) -> None:
    listed = [values, *more] if isinstance(values, int) else list(values)
    model.graph.initializer.append(numpy_helper.from_array(np.array(listed, np.int64), name))


DAMAGES: dict[str, Damage] = {
    "wrong shapes": wrong_shapes,
    "huge dimensions": huge_dimensions,
    "cycles": cycles,
    "nested subgraphs": nested,
    "duplicate names": duplicates,
    "absent data": absent,
    "files outside": beside,
    "functions": functions,
    "types": types,
    "attributes": attributes,
    "metadata": metadata,
    "operators": operators,
    "constants": constants,
}


def damaged_model(rng: random.Random, kind: str, models: Sequence[bytes]) -> bytes:
    """Returns the bytes of one of ``models``, chosen at random, with one kind of damage."""
    model = whole_model(rng, models)
    if kind == "nested subgraphs" and rng.random() < 0.1:
        return bytes(model.SerializeToString()) + deep_graph(rng.choice((33, 60, 1000, 5000)))
    DAMAGES[kind](rng, model)
    return bytes(model.SerializeToString())


def deep_graph(depth: int) -> bytes:
    """Returns bytes that append a node to a model's graph. Its subgraphs are nested ``depth`` deep.

    protobuf itself would not write subgraphs nested so deeply.
    """
    graph = b""
    for _ in range(depth):  # from the inside to the outside; the numbers are those of fields in onnx.proto
        attribute = field(1, b"then_branch") + field(6, graph)
        graph = field(1, field(2, b"deep") + field(4, b"If") + field(5, attribute))
    return field(7, graph)


def field(number: int, content: bytes) -> bytes:
    """Returns a field of a protobuf message. Its content is a message or text."""
    length, left = b"", len(content)
    while left > 127:
        length, left = length + bytes((left & 127 | 128,)), left >> 7
    return bytes((number << 3 | 2,)) + length + bytes((left,)) + content


def make_surroundings(folder: Path, outside: Path) -> None:
    """Makes the files, links, folder and pipe that ``PLACES`` names: in ``folder``, and one file in ``outside``."""
    (folder / "folder").mkdir()
    (folder / "w.bin").write_bytes(bytes(range(256)) * 40)
    (outside / "w.bin").write_bytes(b"secret" * 1000)
    (folder / "link").symlink_to(outside / "w.bin")
    (folder / "folder" / "link").symlink_to("../../w.bin")
    os.mkfifo(folder / "pipe")
