"""Where a traced model can be cut, and what would cross there."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp, TensorMetadata

from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.errors import UnknownCutError
from split_infer_ros.split.graph import BLOCKS

INPUT, OUTPUT = "input", "output"

# A cut just before one of these would leave a tail of no weight to the other side.
_TAILS = (nn.ReLU, nn.ReLU6, nn.SiLU, nn.Hardswish, nn.GELU, nn.BatchNorm2d, nn.Dropout, nn.Identity)


@dataclass(frozen=True, slots=True)
class Cut:
    """A place between two operations.

    Attributes:
        name: the block that ends there, such as ``features.16``; ``input`` and ``output`` are the two ends.
        aliases: enclosing blocks that end there too, such as ``features``.
        position: how many of the graph's nodes are the backbone's.
        tensors: what crosses, an image's part each.
    """

    name: str
    aliases: tuple[str, ...]
    position: int
    tensors: tuple[TensorSpec, ...]

    @property
    def bytes_per_image(self) -> int:
        """Bytes that cross for one image."""
        return sum(spec.bytes_per_image for spec in self.tensors)

    def in_precision(self, dtype: torch.dtype) -> Cut:
        """The same cut of a backbone that computes in ``dtype``: what crosses in floating point has it."""
        return replace(
            self,
            tensors=tuple(
                replace(spec, dtype=dtype) if spec.dtype.is_floating_point else spec for spec in self.tensors
            ),
        )


def find_cuts(graph: fx.GraphModule, image_shape: tuple[int, int, int]) -> tuple[Cut, ...]:
    """Every cut of a model, from ``input`` (all of it is the head's) to ``output`` (all is the backbone's).

    Args:
        graph: a traced model that takes float32 (N, C, H, W).
        image_shape: (C, H, W).

    Returns:
        The cuts in order; only places where all that crosses are tensors with the batch in front.
    """
    batch = 2  # tells the batch dimension from dimensions that happen to be 1
    example = torch.zeros((batch, *image_shape)).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        ShapeProp(graph).propagate(example)
    nodes = list(graph.graph.nodes)
    named = dict(_ends_of_blocks(nodes, set(graph.meta[BLOCKS])))
    cuts = []
    for position in range(1, len(nodes)):
        if position == 1:
            names = [INPUT]
        elif position == len(nodes) - 1:
            names = [OUTPUT]
        elif position in named and not _before_tail(graph, nodes[position]):
            names = named[position]
        else:
            continue
        specs = [_spec(node, batch) for node in live_values(nodes, position)]
        if all(specs):
            cuts.append(Cut(names[0], tuple(names[1:]), position, tuple(spec for spec in specs if spec)))
    return tuple(cuts)


def choose_cut(cuts: Sequence[Cut], name: str, model: str) -> Cut:
    """The cut of that name or alias.

    Raises:
        UnknownCutError: there is none; the error lists those that there are.
    """
    for cut in cuts:
        if name == cut.name or name in cut.aliases:
            return cut
    names = [cut.name for cut in cuts]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    raise UnknownCutError(f"{model} has no split point '{name}'.{hint} It has: {', '.join(names)}.")


def live_values(nodes: Sequence[fx.Node], position: int) -> list[fx.Node]:
    """What the nodes from ``position`` on need of those before it; constants are both sides' own."""
    behind = set(nodes[position:])
    return [n for n in nodes[:position] if n.op != "get_attr" and any(user in behind for user in n.users)]


def _ends_of_blocks(nodes: Sequence[fx.Node], blocks: set[str]) -> Iterator[tuple[int, list[str]]]:
    """(position, [block, enclosing blocks...]) for each block that ends, and for each run of free functions."""
    owners = [_owner(node) for node in nodes]
    last = {path: index for index, owner in enumerate(owners) for path in _ancestors(owner)}
    seen: Counter[str] = Counter()
    for index, node in enumerate(nodes[:-1]):
        owner = owners[index]
        ended = [path for path in _ancestors(owner) if last[path] == index]
        names = [path for path in ended if path in blocks]
        if names:
            # the innermost block names the cut; what encloses it and ends with it are aliases
            yield index + 1, names[:1] + [path for path in ended if names[0].startswith(f"{path}.")]
        elif not any(path in blocks for path in _ancestors(owner)) and node.op in ("call_function", "call_method"):
            following = owners[index + 1]
            if any(path in blocks for path in _ancestors(following)) or nodes[index + 1].op == "output":
                function = re.sub(r"_\d+$", "", node.name)  # which one of them it is depends on torch's version
                seen[function] += 1
                yield index + 1, [function if seen[function] == 1 else f"{function}_{seen[function]}"]


def _owner(node: fx.Node) -> str:
    """Path of the module in whose forward the node was traced."""
    if node.op == "call_module":
        return str(node.target)
    stack = node.meta.get("nn_module_stack")
    return str(list(stack.keys())[-1]) if stack else ""


def _ancestors(path: str) -> list[str]:
    """The path and all that enclose it, innermost first."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _before_tail(graph: fx.GraphModule, node: fx.Node) -> bool:
    return node.op == "call_module" and isinstance(graph.get_submodule(str(node.target)), _TAILS)


def _spec(node: fx.Node, batch: int) -> TensorSpec | None:
    meta = node.meta.get("tensor_meta")
    if not isinstance(meta, TensorMetadata) or not meta.shape or meta.shape[0] != batch:
        return None
    channels_last = len(meta.shape) == 4 and meta.memory_format == torch.channels_last
    return TensorSpec(node.name, tuple(meta.shape[1:]), meta.dtype, channels_last)


def describe(cuts: Sequence[Cut]) -> str:
    """A table of cuts for people."""
    width = max(len(cut.name) for cut in cuts)
    lines = [f"{'cut':<{width}}  {'bytes/image':>12}  tensors"]
    for cut in cuts:
        tensors = ", ".join(f"{spec.name} {tuple(spec.shape)}" for spec in cut.tensors)
        lines.append(f"{cut.name:<{width}}  {cut.bytes_per_image:>12,}  {tensors}")
    return "\n".join(lines)


