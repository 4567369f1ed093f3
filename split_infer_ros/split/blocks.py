"""The blocks of a traced model: the parts after which a person would split it.

Blocks are read from the graph. Each node knows the modules in whose forward it was traced, so torch.fx and
torch.export give the same blocks.
"""

from __future__ import annotations

from collections import Counter

from torch import fx

MIN_STAGE_SHARE = 0.1  # of the graph's nodes
MIN_WHOLE_SHARE = 0.5  # of the graph's weights


def find_blocks(graph: fx.GraphModule) -> set[str]:
    """Returns the paths of the blocks.

    A module is a block unless it is opened. The children of an opened module are examined in turn. Three kinds of
    modules are opened:

    - A chain: nn.Sequential, or a module that is never called, such as nn.ModuleList.
    - A stage: neither it nor another module of its class computes anything outside its children. It has more than a
      tenth of the graph's nodes, and some descendant computes something.
    - The wrapped whole: it has more than half of the weights, and one of its children is a chain.
    """
    return _ModuleTree(graph).blocks("")


def owner_of(node: fx.Node) -> str:
    """Returns the path of the module in whose forward the node was traced. A call of a layer belongs to the layer."""
    if node.op == "call_module":
        return str(node.target)
    stack = node.meta.get("nn_module_stack")
    return str(list(stack.values())[-1][0]) if stack else ""


def kind_of(node: fx.Node) -> str:
    """Returns the name of the class of the node's owner; empty if it has none."""
    stack = node.meta.get("nn_module_stack")
    return _class_name(list(stack.values())[-1][1]).rpartition(".")[2] if stack else ""


def ancestors(path: str) -> list[str]:
    """Returns the path itself and all paths that enclose it, innermost first."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


class _ModuleTree:
    """The modules that a graph's nodes name, with the size of each."""

    def __init__(self, graph: fx.GraphModule) -> None:
        nodes = list(graph.graph.nodes)
        self._classes: dict[str, str] = {}
        self._children: dict[str, set[str]] = {}
        self._sizes: Counter[str] = Counter()  # in nodes
        self._computing: set[str] = set()  # paths of modules that compute something outside their children
        for node in nodes:
            owner = owner_of(node)
            for path, kind in (node.meta.get("nn_module_stack") or {}).values():
                self._classes[str(path)] = _class_name(kind)
            for path in ancestors(owner):
                self._children.setdefault(path.rpartition(".")[0], set()).add(path)
                self._sizes[path] += 1
            if node.op in ("call_function", "call_method") and not self._is_layer(owner):
                self._computing.add(owner)
        self._computing_classes = {self._classes.get(path, "") for path in self._computing}
        self._num_nodes = len(nodes)
        self._weights: Counter[str] = Counter()
        for name, parameter in graph.named_parameters():
            for path in ancestors(name):
                self._weights[path] += parameter.numel()
            self._weights[""] += parameter.numel()

    def blocks(self, path: str) -> set[str]:
        """Returns the paths of the blocks below a path."""
        found: set[str] = set()
        for child in self._children.get(path, ()):
            found |= self.blocks(child) if self._is_opened(child) else {child}
        return found

    def _is_opened(self, path: str) -> bool:
        if self._is_layer(path):
            return False
        is_large = self._sizes[path] > MIN_STAGE_SHARE * self._num_nodes
        is_whole = self._weights[path] > MIN_WHOLE_SHARE * self._weights[""]
        holds_chain = any(self._is_chain(child) for child in self._children.get(path, ()))
        computes = self._classes.get(path) in self._computing_classes
        is_stage = is_large and not computes and any(each.startswith(f"{path}.") for each in self._computing)
        return self._is_chain(path) or is_stage or (is_whole and holds_chain)

    def _is_chain(self, path: str) -> bool:
        if path not in self._classes:
            return path in self._children
        return self._classes[path] == "torch.nn.modules.container.Sequential" and path in self._children

    def _is_layer(self, path: str) -> bool:
        name = self._classes.get(path, "")
        return name.startswith("torch.nn.modules.") and not name.startswith("torch.nn.modules.container.")


def _class_name(kind: type | str) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
