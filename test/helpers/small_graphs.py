"""A small ONNX graph with seeded weights, and the same network in torch."""

from __future__ import annotations

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor
from torch.nn import functional

from split_infer_ros.onnx.graph import OnnxGraph

CHANNELS, SIDE = 8, 12
IMAGE_SHAPE = (3, SIDE, SIDE)
ROUNDING = 1e-5
"""The most by which results may differ, as a share of the largest: sums of 27 and 72 products in float32, added up in
any order, differ by less than 72 x 2^-24 = 4e-6 of the sum of their sizes, which is a few times the largest result."""


def weights() -> dict[str, Tensor]:
    """Returns the weights of the network by name, the same ones at each call."""
    random = torch.Generator().manual_seed(7)
    shapes = {"w1": (CHANNELS, 3, 3, 3), "b1": (CHANNELS,), "w2": (CHANNELS, CHANNELS, 3, 3), "b2": (CHANNELS,)}
    return {name: 0.2 * torch.randn(shape, generator=random) for name, shape in shapes.items()}


def images(count: int, seed: int = 0) -> Tensor:
    """Returns noise, float32 (count, 3, SIDE, SIDE)."""
    return torch.randn((count, *IMAGE_SHAPE), generator=torch.Generator().manual_seed(seed))


def in_torch(x: Tensor) -> tuple[Tensor, Tensor]:
    """Maps (N, 3, SIDE, SIDE) to features (N, CHANNELS, SIDE, SIDE) and their means (N, CHANNELS)."""
    own = weights()
    first = functional.conv2d(x, own["w1"], own["b1"], padding=1).relu()
    second = functional.conv2d(first, own["w2"], own["b2"], padding=1)
    return first + second, second.mean(dim=(2, 3))


def small_graph(batch: str | int = "batch") -> OnnxGraph:
    """Returns the network as an ONNX graph. ``batch`` is a symbol or a number."""
    nodes = [
        helper.make_node("Conv", ["images", "w1", "b1"], ["conv1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv1"], ["first"]),
        helper.make_node("Conv", ["first", "w2", "b2"], ["second"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["first", "second"], ["features"]),
        helper.make_node("ReduceMean", ["second"], ["means"], axes=[2, 3], keepdims=0),
    ]
    return graph_of(
        nodes,
        inputs={"images": [batch, *IMAGE_SHAPE]},
        outputs={"features": [batch, CHANNELS, SIDE, SIDE], "means": [batch, CHANNELS]},
        constants={name: tensor.numpy() for name, tensor in weights().items()},
    )


def graph_of(
    nodes: list[onnx.NodeProto],
    *,
    inputs: dict[str, list[str | int]],
    outputs: dict[str, list[str | int]],
    constants: dict[str, np.ndarray] | None = None,
    name: str = "small",
    types: dict[str, int] | None = None,
) -> OnnxGraph:
    """Returns a graph of some nodes.

    Args:
        nodes: the nodes, in the order of execution.
        inputs, outputs: the shapes of inputs and outputs, by name.
        constants: the constants, by name.
        name: the name of the graph.
        types: types of ``onnx.TensorProto`` for inputs and outputs, by name; others are float32.
    """

    def values(shapes: dict[str, list[str | int]]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(each, (types or {}).get(each, TensorProto.FLOAT), shape)
            for each, shape in shapes.items()
        ]

    constants_ = [numpy_helper.from_array(array, each) for each, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, name, values(inputs), values(outputs), constants_)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return OnnxGraph(name, model)
