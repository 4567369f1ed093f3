"""Where a traced model can be split, and what would cross there."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.errors import UnknownSplitPointError
from split_infer_ros.split.blocks import ancestors, find_blocks, kind_of, owner_of

INPUT, OUTPUT = "input", "output"
SEEN = "seen"  # key in a node's meta: how long its value is, and what of it an image has; None for what is no tensor

# A split point just before one of these would leave a tail of no weight to the other side.
_TAILS = ("ReLU", "ReLU6", "SiLU", "Hardswish", "GELU", "BatchNorm2d", "Dropout", "Identity")

_CASTS = ("float", "partition", "bfloat16", "to", "type_as", torch.ops.aten.to.dtype, torch.ops.aten._to_copy.default)


@dataclass(frozen=True, slots=True)
class SplitPoint:
    """A place between two operations.

    Attributes:
        name: the block that ends there, such as ``features.16``; ``input`` and ``output`` are the two ends.
        aliases: enclosing blocks that end there too, such as ``features``.
        position: how many of the graph's nodes are the backbone's.
        tensors: what crosses, an image's part each.
        wide: names of those that are float32 in whatever precision the backbone computes.
    """

    name: str
    aliases: tuple[str, ...]
    position: int
    tensors: tuple[TensorSpec, ...]
    wide: frozenset[str] = frozenset()

    @property
    def bytes_per_image(self) -> int:
        """Bytes that cross for one image."""
        return sum(spec.bytes_per_image for spec in self.tensors)

    def in_precision(self, dtype: torch.dtype) -> SplitPoint:
        """The same split point of a backbone that computes in ``dtype``: what crosses in floating point has it, if not
        wide.
        """
        return replace(
            self,
            tensors=tuple(
                replace(spec, dtype=dtype) if spec.dtype.is_floating_point and spec.name not in self.wide else spec
                for spec in self.tensors
            ),
        )


def find_split_points(graph: fx.GraphModule, image_shape: tuple[int, int, int]) -> tuple[SplitPoint, ...]:
    """Every split point of a model, from ``input`` (all of it is the head's) to ``output`` (all is the backbone's).

    Args:
        graph: a traced model that takes float32 (N, C, H, W).
        image_shape: (C, H, W).

    Returns:
        The split points in order; only places where all that crosses are tensors with the batch in front.
    """
    batch = 2  # tells the batch dimension from dimensions that happen to be 1
    propagate(_Recorder(graph), (batch, *image_shape))
    nodes = list(graph.graph.nodes)
    named = dict(_ends_of_blocks(nodes, find_blocks(graph)))
    wide = _wide(nodes)
    split_points = []
    for position in range(1, len(nodes)):
        if position == 1:
            names = [INPUT]
        elif position == len(nodes) - 1:
            names = [OUTPUT]
        elif position in named and kind_of(nodes[position]) not in _TAILS:
            names = named[position]
        else:
            continue
        specs = [_spec(node, batch) for node in live_values(nodes, position)]
        if all(specs):
            tensors = tuple(spec for spec in specs if spec)
            kept = frozenset(spec.name for spec in tensors if spec.name in wide)
            split_points.append(SplitPoint(names[0], tuple(names[1:]), position, tensors, kept))
    return tuple(split_points)


def choose_split_point(split_points: Sequence[SplitPoint], name: str, model: str) -> SplitPoint:
    """The split point of that name or alias.

    Raises:
        UnknownSplitPointError: there is none; the error lists those that there are.
    """
    for split_point in split_points:
        if name == split_point.name or name in split_point.aliases:
            return split_point
    names = [split_point.name for split_point in split_points]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    raise UnknownSplitPointError(f"{model} has no split point '{name}'.{hint} It has: {', '.join(names)}.")


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps each value's shape and dtype in its node."""

    def run_node(self, node: fx.Node) -> Any:
        result = super().run_node(node)
        node.meta[SEEN] = _seen(node.name, result) if isinstance(result, Tensor) and result.dim() else None
        return result


def _seen(name: str, value: Tensor) -> tuple[int, TensorSpec]:
    return len(value), TensorSpec(name, tuple(value.shape[1:]), value.dtype)


def propagate(interpreter: fx.Interpreter, image_shape: tuple[int, ...], *others: object) -> None:
    """Run an interpreter on images of that shape, (N, C, H, W); without computing anything, where that is possible.

    Args:
        interpreter: sees each value, or one that has its shape, dtype and layout alone.
        image_shape: of the first input.
        others: further inputs.
    """

    def run() -> None:
        interpreter.run(torch.zeros(image_shape).contiguous(memory_format=torch.channels_last), *others)

    with torch.inference_mode():
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):  # computes nothing
                run()
        except Exception:  # whatever asks for values: shapes that depend on them, operators that know no other way
            run()


def live_values(nodes: Sequence[fx.Node], position: int) -> list[fx.Node]:
    """What the nodes from ``position`` on need of those before it; constants are both sides' own."""
    behind = set(nodes[position:])
    return [n for n in nodes[:position] if n.op != "get_attr" and any(user in behind for user in n.users)]


def _wide(nodes: Sequence[fx.Node]) -> set[str]:
    """Names of values that were made float32 on purpose, as detectors do with boxes, and of all that follows."""
    wide: set[str] = set()
    for node in nodes:
        if node.target in _CASTS:
            is_wide = node.target == "float" or torch.float32 in (*node.args, *node.kwargs.values())
        else:
            is_wide = any(source.name in wide for source in node.all_input_nodes)
        if is_wide:
            wide.add(node.name)
    return wide


def _ends_of_blocks(nodes: Sequence[fx.Node], blocks: set[str]) -> Iterator[tuple[int, list[str]]]:
    """(position, [block, enclosing blocks...]) for each block that ends, and for each run of free functions."""
    owners = [owner_of(node) for node in nodes]
    last = {path: index for index, owner in enumerate(owners) for path in ancestors(owner)}
    seen: Counter[str] = Counter()
    for index, node in enumerate(nodes[:-1]):
        owner = owners[index]
        ended = [path for path in ancestors(owner) if last[path] == index]
        names = [path for path in ended if path in blocks]
        if names:
            # the innermost block names the split point; what encloses it and ends with it are aliases
            yield index + 1, names[:1] + [path for path in ended if names[0].startswith(f"{path}.")]
        elif not any(path in blocks for path in ancestors(owner)) and node.op in ("call_function", "call_method"):
            following = owners[index + 1]
            if any(path in blocks for path in ancestors(following)) or nodes[index + 1].op == "output":
                function = re.sub(r"_\d+$", "", node.name)  # which one of them it is depends on torch's version
                seen[function] += 1
                yield index + 1, [function if seen[function] == 1 else f"{function}_{seen[function]}"]


def _spec(node: fx.Node, batch: int) -> TensorSpec | None:
    length, spec = node.meta[SEEN] or (0, None)
    return spec if length == batch else None


def describe(split_points: Sequence[SplitPoint], default: SplitPoint | None = None) -> str:
    """A table for people: a line a split point, one more for each further tensor; ``default`` carries a mark."""
    width = max(len(split_point.name) for split_point in split_points)
    lines = [f"  {'split_point':<{width}}  {'bytes/image':>11}  tensors"]
    for split_point in split_points:
        mark = "*" if split_point == default else " "
        start = f"{mark} {split_point.name:<{width}}  {split_point.bytes_per_image:>11,}"
        for spec in split_point.tensors:
            lines.append(f"{start}  {spec.name} {str(spec.dtype).removeprefix('torch.')} {spec.shape}")
            start = " " * len(start)
    return "\n".join(lines)
