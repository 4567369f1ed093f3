"""Which nodes are layers, which of them are last, and what decodes: also through a convolution without weights."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
from onnx import GraphProto, NodeProto, helper, numpy_helper

from split_infer_ros.onnx.layers import find_layers

RANDOM = np.random.default_rng(0)
WEIGHTS = {"w1": (8, 3, 3, 3), "w2": (64, 8, 1, 1), "w3": (4, 8, 1, 1)}
BINS = np.arange(16, dtype=np.float32)


def graph(nodes: list[NodeProto], **more: np.ndarray) -> GraphProto:
    constants = {name: RANDOM.normal(size=shape).astype(np.float32) for name, shape in WEIGHTS.items()} | more
    found = GraphProto(node=nodes)
    found.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return found


def conv(source: str, weights: str, result: str) -> NodeProto:
    return helper.make_node("Conv", [source, weights], [result])


def node(operator: str, *names: str) -> NodeProto:
    return helper.make_node(operator, list(names[:-1]), [names[-1]])


def test_layers_before_the_results_are_the_last_ones() -> None:
    """Two heads leave one trunk. A sigmoid follows one of them."""
    found = find_layers(
        graph(
            [
                conv("images", "w1", "trunk"),
                node("Relu", "trunk", "active"),
                conv("active", "w2", "boxes"),
                conv("active", "w3", "logits"),
                node("Sigmoid", "logits", "scores"),
            ]
        )
    )
    assert (found.layers, found.last, found.decoding) == ((0, 2, 3), (2, 3), (4,))


def mean_of_bins(*last: NodeProto) -> GraphProto:
    """A network whose boxes are distributions, as YOLOv8 has them. ``last`` gives their means."""
    nodes = [
        conv("images", "w1", "trunk"),
        conv("trunk", "w2", "bins"),
        node("Reshape", "bins", "shape", "split"),
        node("Softmax", "split", "shares"),
        *last,
    ]
    return graph(
        nodes,
        shape=np.array([0, 4, 16, -1]),
        bins_as_kernel=BINS.reshape(1, 16, 1, 1),
        bins_as_column=BINS.reshape(16, 1),
        uneven=(BINS**1.5).astype(np.float32).reshape(16, 1),
    )


@pytest.mark.parametrize(
    "last",
    [
        (node("Transpose", "shares", "turned"), conv("turned", "bins_as_kernel", "boxes")),
        (node("Transpose", "shares", "turned"), node("MatMul", "turned", "bins_as_column", "boxes")),
        (node("Transpose", "shares", "turned"), node("MatMul", "turned", "uneven", "boxes")),
    ],
    ids=["convolution", "product", "uneven bins"],
)
def test_the_mean_of_a_distribution_is_no_layer(last: tuple[NodeProto, ...]) -> None:
    found = find_layers(mean_of_bins(*last))
    assert found.last == (1,)
    assert found.decoding == (2, 3, 4, 5)


def test_weights_may_come_through_other_operators() -> None:
    nodes = [
        node("Identity", "w1", "same"),
        conv("images", "same", "trunk"),
        node("DequantizeLinear", "w2", "scale", "dequantised"),
        conv("trunk", "dequantised", "boxes"),
    ]
    assert find_layers(graph(nodes, scale=np.float32(0.1))).last == (3,)


def test_depthwise_convolutions_are_told_apart() -> None:
    nodes = [
        conv("images", "w1", "trunk"),
        helper.make_node("Conv", ["trunk", "own"], ["filtered"], group=8),
        conv("filtered", "w3", "boxes"),
    ]
    found = find_layers(graph(nodes, own=RANDOM.normal(size=(8, 1, 3, 3)).astype(np.float32)))
    assert (found.layers, found.depthwise, found.last) == ((0, 1, 2), (1,), (2,))


def test_products_of_two_computed_values_are_no_layers() -> None:
    nodes = [conv("images", "w1", "trunk"), node("MatMul", "trunk", "trunk", "product")]
    found = find_layers(graph(nodes))
    assert (found.layers, found.decoding) == ((0,), (1,))


def test_weights_of_whole_numbers_decode_and_zeros_do_not() -> None:
    """A matrix that picks columns was not learned. A layer that was set to 0 may be."""
    nodes = [conv("images", "w1", "trunk"), node("MatMul", "trunk", "picks", "picked")]
    assert find_layers(graph(nodes, picks=np.eye(8, dtype=np.float32))).last == (0,)
    assert find_layers(graph(nodes, picks=np.zeros((8, 8), np.float32))).last == (1,)
