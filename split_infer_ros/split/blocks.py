"""The blocks of a traced model: the parts after which people would cut it.

Blocks are read from the graph, whose nodes know the modules in whose forward they were traced, and so are the same for
torch.fx and for torch.export.
"""

from __future__ import annotations

from collections import Counter

from torch import fx

STAGE_SHARE = 0.1  # of the graph's nodes
WHOLE_SHARE = 0.5  # of its weights


def find_blocks(graph: fx.GraphModule) -> set[str]:
    """Paths of the blocks.

    A module is opened, and what it holds are blocks, if it is

    - a chain: nn.Sequential itself, or never called, as nn.ModuleList;
    - a stage: it calls others and does nothing itself, as no other of its class does, is over a tenth of the model,
      and some part of it is more than a row of layers;
    - the wrapped whole: over half of the weights are in it, and it holds a chain.
    """
    return _Tree(graph).blocks("")


def owner_of(node: fx.Node) -> str:
    """Path of the module in whose forward the node was traced; of a call of a layer, the layer's."""
    if node.op == "call_module":
        return str(node.target)
    stack = node.meta.get("nn_module_stack")
    return str(list(stack.values())[-1][0]) if stack else ""


def kind_of(node: fx.Node) -> str:
    """Name of the class of the node's owner."""
    stack = node.meta.get("nn_module_stack")
    return _class_name(list(stack.values())[-1][1]).rpartition(".")[2] if stack else ""


def ancestors(path: str) -> list[str]:
    """The path and all that enclose it, innermost first."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


class _Tree:
    def __init__(self, graph: fx.GraphModule) -> None:
        nodes = list(graph.graph.nodes)
        self._classes: dict[str, str] = {}
        self._children: dict[str, set[str]] = {}
        self._sizes: Counter[str] = Counter()
        self._busy: set[str] = set()  # paths of modules that do something themselves
        for node in nodes:
            owner = owner_of(node)
            for path, kind in (node.meta.get("nn_module_stack") or {}).values():
                self._classes[str(path)] = _class_name(kind)
            for path in ancestors(owner):
                self._children.setdefault(path.rpartition(".")[0], set()).add(path)
                self._sizes[path] += 1
            if node.op in ("call_function", "call_method") and not self._is_layer(owner):
                self._busy.add(owner)
        self._busy_classes = {self._classes.get(path, "") for path in self._busy}
        self._nodes = len(nodes)
        self._weights: Counter[str] = Counter()
        for name, parameter in graph.named_parameters():
            for path in ancestors(name):
                self._weights[path] += parameter.numel()
            self._weights[""] += parameter.numel()

    def blocks(self, path: str) -> set[str]:
        """Paths of the blocks below."""
        found: set[str] = set()
        for child in self._children.get(path, ()):
            found |= self.blocks(child) if self._is_opened(child) else {child}
        return found

    def _is_opened(self, path: str) -> bool:
        if self._is_layer(path):
            return False
        is_large = self._sizes[path] > STAGE_SHARE * self._nodes
        is_whole = self._weights[path] > WHOLE_SHARE * self._weights[""]
        holds_chain = any(self._is_chain(child) for child in self._children.get(path, ()))
        is_idle = self._classes.get(path) not in self._busy_classes
        is_stage = is_large and is_idle and any(busy.startswith(f"{path}.") for busy in self._busy)
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
