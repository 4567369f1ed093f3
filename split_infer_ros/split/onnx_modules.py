"""The modules of an ONNX model, as its exporter recorded them in the nodes.

The exporters of torch name the module in whose forward a node was traced, in one of two ways:

- By metadata: the paths and the classes of the module and of all modules around it.
- By the node's name, such as ``/model.9/cv1/conv/Conv``: the path alone. What the modules are is then guessed.

Nodes of other exporters have no modules.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from split_infer_ros.split.blocks import ModuleClass, ModuleKind, Operation, ancestors, class_of

if TYPE_CHECKING:
    import onnx

_SCOPES, _CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"


def read_modules(nodes: Sequence[onnx.NodeProto]) -> tuple[list[Operation], dict[str, ModuleClass]]:
    """Returns the nodes as operations, and the classes of the modules by path."""
    metadata = [{entry.key: entry.value for entry in node.metadata_props} for node in nodes]
    if any(_SCOPES in each for each in metadata):
        return _from_metadata(nodes, metadata)
    return _from_names(nodes)


def _from_metadata(
    nodes: Sequence[onnx.NodeProto], metadata: Sequence[Mapping[str, str]]
) -> tuple[list[Operation], dict[str, ModuleClass]]:
    operations: list[Operation] = []
    classes: dict[str, ModuleClass] = {}
    for node, facts in zip(nodes, metadata, strict=True):
        scopes, kinds = _read_list(facts.get(_SCOPES)), _read_list(facts.get(_CLASSES))
        if len(scopes) > 1 and len(kinds) == len(scopes):
            classes |= {path: class_of(kind) for path, kind in zip(scopes[:-1], kinds, strict=False) if path}
            operations.append(Operation(scopes[-2], re.sub(r"_\d+$", "", scopes[-1])))
        else:  # the exporter made this node of others
            owner = operations[-1].owner if operations else ""
            operations.append(Operation(owner, node.op_type.lower()))
    return operations, classes


def _from_names(nodes: Sequence[onnx.NodeProto]) -> tuple[list[Operation], dict[str, ModuleClass]]:
    """Guesses what modules are. One without children is a layer; one with numbered children may be a chain."""
    operations = [Operation(_path_of(str(node.name)), str(node.op_type).lower()) for node in nodes]
    children: dict[str, set[str]] = {}
    for operation in operations:
        for path in ancestors(operation.owner):
            children.setdefault(path.rpartition(".")[0], set()).add(path.rpartition(".")[2])
    computing = {operation.owner for operation in operations}
    classes = {}
    for path in {path for operation in operations for path in ancestors(operation.owner)}:
        if path not in children:
            kind = ModuleKind.LAYER
        elif path not in computing and all(name.isdecimal() for name in children[path]):
            kind = ModuleKind.CHAIN
        else:
            kind = ModuleKind.OTHER
        classes[path] = ModuleClass(path, kind)
    return operations, classes


def _path_of(name: str) -> str:
    """Returns the path of the module that a node's name gives.

    Its parts are ``layer1/layer1.0/conv1/Conv``: the child of a chain repeats the chain's name.
    """
    path: list[str] = []
    for part in name.strip("/").split("/")[:-1]:
        if path and part.startswith(f"{path[-1]}."):
            path[-1] = part
        elif part:
            path.append(part)
    return ".".join(path)


def unique_names(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """Returns a different name for each node: its own name if it has one, else its operator.

    A number follows if the name is an operator, or if an earlier node has the same name.
    """
    counts: Counter[str] = Counter()
    names = []
    for node in nodes:
        name = str(node.name) or str(node.op_type).lower()
        counts[name] += 1
        is_first = bool(node.name) and counts[name] == 1
        names.append(name if is_first else f"{name}_{counts[name]}")
    return names


def _read_list(text: str | None) -> list[str]:
    """Reads a list of texts as Python writes it; empty if it is something else."""
    try:
        value = ast.literal_eval(text or "[]")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return list(map(str, value)) if isinstance(value, list) else []
