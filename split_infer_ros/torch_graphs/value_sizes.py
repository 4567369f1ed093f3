"""The sizes of all values in a traced graph, found in one run that computes nothing if that is possible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from split_infer_ros.buffers.host_arrays import DType, dtype_of

# A run of a smaller network takes less time than FakeTensorMode, which imports torch._dynamo and sympy.
_MAX_COMPUTED_PARAMETERS = 2_000_000


@dataclass(frozen=True, slots=True)
class TensorSize:
    """The shape and dtype of a tensor, without its elements.

    Attributes:
        shape: the lengths of the tensor's dimensions.
        dtype: the dtype of the tensor's elements.
    """

    shape: tuple[int, ...]
    dtype: DType

    @property
    def nbytes(self) -> int:
        """How many bytes the tensor's elements take."""
        return math.prod(self.shape) * self.dtype.itemsize


def value_sizes(graph: fx.GraphModule, image_shape: tuple[int, ...], *others: object) -> dict[fx.Node, Any]:
    """Runs a graph on black images and returns the size of each node's value; see ``size_of``.

    A large network runs without computing anything, unless a shape depends on values or an operator needs values.

    Args:
        graph: a traced graph. It is not changed.
        image_shape: the shape of the first input, (N, C, H, W).
        others: the graph's further inputs.
    """
    recorder = _SizeRecorder(graph)

    def run() -> None:
        recorder.run(torch.zeros(image_shape).contiguous(memory_format=torch.channels_last), *others)

    with torch.inference_mode():
        if sum(parameter.numel() for parameter in graph.parameters()) <= _MAX_COMPUTED_PARAMETERS:
            run()
            return recorder.sizes
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):  # computes nothing
                run()
        except Exception:  # the graph needs values: a shape depends on them, or an operator has no fake version
            run()
    return recorder.sizes


def size_of(value: Any) -> Any:
    """Returns a value with a ``TensorSize`` in the place of each tensor in it, also in nested tuples and lists."""
    if isinstance(value, Tensor):
        return TensorSize(tuple(value.shape), dtype_of(value))
    return pytree.tree_map_only(Tensor, size_of, value)


class _SizeRecorder(fx.Interpreter):
    """Runs a graph and keeps the size of each value, but no value."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.sizes: dict[fx.Node, Any] = {}

    def run_node(self, node: fx.Node) -> Any:
        result = super().run_node(node)
        self.sizes[node] = size_of(result)
        return result
