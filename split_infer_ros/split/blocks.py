"""The blocks of a model: the parts after which a person would split it.

Blocks are found from a traced model's operations, and from the classes and weights of its modules. Each operation notes
the module that ran it in its ``forward`` when the model was traced. All tracers note this module: torch.fx,
torch.export and ONNX exporters. So all of them give the same blocks.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

MIN_STAGE_SHARE = 0.1  # of the model's operations
MIN_WHOLE_SHARE = 0.5  # of the model's weights

_LAYERS = "torch.nn.modules."
_CONTAINERS = "torch.nn.modules.container."


class ModuleKind(enum.Enum):
    """The role of a module in the search for blocks (see ``find_blocks``).

    - ``CHAIN``: a module that runs its children one after the other.
    - ``LAYER``: a module that counts as one operation. The search never looks for blocks inside it.
    - ``OTHER``: any other module.
    """

    CHAIN = "chain"
    LAYER = "layer"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ModuleClass:
    """The class of a module.

    Attributes:
        name: the full name of the class. Modules of the same class have the same name.
        kind: the role of modules of this class in the search for blocks.
    """

    name: str
    kind: ModuleKind


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a model.

    Attributes:
        owner: the path of the module that ran the operation in its ``forward``; empty for the whole model. The call of
            a layer has the path of that layer.
        function: the name of the function that the operation calls; empty if it calls none. If the operation lies
            outside all blocks, a split point right behind it gets this name.
    """

    owner: str
    function: str = ""


def class_of(name: str) -> ModuleClass:
    """Returns the ``ModuleClass`` for the full name of a class, such as ``torch.nn.modules.conv.Conv2d``.

    The kind follows from the name. ``Sequential`` is a chain. Torch's other modules, apart from its containers, are
    layers. All other classes are ``OTHER``. The class is not imported, and need not exist.
    """
    if name == f"{_CONTAINERS}Sequential":
        return ModuleClass(name, ModuleKind.CHAIN)
    is_layer = name.startswith(_LAYERS) and not name.startswith(_CONTAINERS)
    return ModuleClass(name, ModuleKind.LAYER if is_layer else ModuleKind.OTHER)


def find_blocks(
    operations: Sequence[Operation], classes: Mapping[str, ModuleClass], weights: Mapping[str, int]
) -> set[str]:
    """Returns the paths of the blocks.

    The search begins with the children of the whole model. A module is a block unless it is opened. To open a module
    means to look for blocks among its children instead. Three kinds of modules are opened:

    - A chain: nn.Sequential, or a module that is never called, such as nn.ModuleList.
    - A stage: the module has more than a tenth of the operations. A module inside it calls functions in its own
      ``forward``. Neither the stage nor another module of its class does so.
    - The wrapped whole: the module has more than half of the weights, and one of its children is a chain.

    Args:
        operations: the model's operations, in order.
        classes: the class of each module that is called, by the module's path.
        weights: how many weights there are, by the path of a module or of a single parameter.
    """
    return _ModuleTree(operations, classes, weights).blocks("")


def ends_of_blocks(operations: Sequence[Operation], blocks: set[str]) -> Iterator[tuple[int, list[str]]]:
    """Yields the position and the names of each place where a split point may lie.

    The position is the number of operations before the place. There are two kinds of places:

    - The end of a block. Its names are the path of the block and the paths of the enclosing modules that end there too.
    - The end of consecutive functions outside all blocks. Its only name is the name of the last function. The name gets
      a number if an earlier place has it already.

    Args:
        operations: the operations in order. The last one gives the model's outputs, so no place lies behind it.
        blocks: the paths of the blocks.
    """
    last = {path: index for index, operation in enumerate(operations) for path in ancestors(operation.owner)}
    counts: Counter[str] = Counter()

    def is_in_block(index: int) -> bool:
        return any(path in blocks for path in ancestors(operations[index].owner))

    for index, operation in enumerate(operations[:-1]):
        ended = [path for path in ancestors(operation.owner) if last[path] == index]
        names = [path for path in ended if path in blocks]
        if names:
            # the innermost block names the split point; blocks that enclose it and end with it are aliases
            yield index + 1, names[:1] + [path for path in ended if names[0].startswith(f"{path}.")]
            continue
        ends_run = index + 2 == len(operations) or is_in_block(index + 1)
        if operation.function and not is_in_block(index) and ends_run:
            function = operation.function
            counts[function] += 1
            yield index + 1, [function if counts[function] == 1 else f"{function}_{counts[function]}"]


def ancestors(path: str) -> list[str]:
    """Returns a module's path and the paths of all modules that enclose it, from the innermost to the outermost."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


class _ModuleTree:
    """The modules that a model's operations name, as a tree, with the numbers of operations and weights of each."""

    def __init__(
        self, operations: Sequence[Operation], classes: Mapping[str, ModuleClass], weights: Mapping[str, int]
    ) -> None:
        self._classes = classes
        self._children: dict[str, set[str]] = {}
        self._sizes: Counter[str] = Counter()  # in operations
        self._computing: set[str] = set()  # paths of modules that compute something outside their children
        for operation in operations:
            for path in ancestors(operation.owner):
                self._children.setdefault(path.rpartition(".")[0], set()).add(path)
                self._sizes[path] += 1
            if operation.function and not self._is_layer(operation.owner):
                self._computing.add(operation.owner)
        self._computing_classes = {self._class_name(path) for path in self._computing}
        self._num_operations = len(operations)
        self._weights: Counter[str] = Counter()
        for name, count in weights.items():
            for path in (*ancestors(name), ""):
                self._weights[path] += count

    def blocks(self, path: str) -> set[str]:
        """Returns the paths of the blocks inside the module with this path. The empty path is the whole model."""
        found: set[str] = set()
        for child in self._children.get(path, ()):
            found |= self.blocks(child) if self._is_opened(child) else {child}
        return found

    def _is_opened(self, path: str) -> bool:
        if self._is_layer(path):
            return False
        is_large = self._sizes[path] > MIN_STAGE_SHARE * self._num_operations
        is_whole = self._weights[path] > MIN_WHOLE_SHARE * self._weights[""]
        holds_chain = any(self._is_chain(child) for child in self._children.get(path, ()))
        computes = path in self._classes and self._class_name(path) in self._computing_classes
        is_stage = is_large and not computes and any(each.startswith(f"{path}.") for each in self._computing)
        return self._is_chain(path) or is_stage or (is_whole and holds_chain)

    def _is_chain(self, path: str) -> bool:
        known = self._classes.get(path)
        return path in self._children and (known is None or known.kind is ModuleKind.CHAIN)

    def _is_layer(self, path: str) -> bool:
        known = self._classes.get(path)
        return known is not None and known.kind is ModuleKind.LAYER

    def _class_name(self, path: str) -> str:
        known = self._classes.get(path)
        return known.name if known else ""
