"""Makes an ONNX graph that contains a network and the decoding of its outputs. It needs the package onnx."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, helper
from small_graphs import IMAGE_SHAPE, graph_of

from split_infer_ros.onnx.graph import OnnxGraph

CELLS = IMAGE_SHAPE[1] * IMAGE_SHAPE[2]
BINS = 16


def node(operator: str, inputs: str, output: str, **attributes: object) -> NodeProto:
    return helper.make_node(operator, inputs.split(), [output], **attributes)


def detector(*, raw: bool = False) -> OnnxGraph:
    """Returns a detector. Its boxes are the means of distributions over 16 bins, which a convolution computes.

    Its scores are computed first, so nodes of decoding stand between the layers. With ``raw``, the logits of the scores
    are a result as well.
    """
    random = np.random.default_rng(3)
    constants = {
        "w1": random.normal(0, 0.3, (8, 3, 3, 3)),
        "w2": random.normal(0, 1.0, (2, 8, 1, 1)),
        "w3": random.normal(0, 1.0, (4 * BINS, 8, 1, 1)),
        "bins": np.arange(BINS).reshape(1, BINS, 1, 1),
        "stride": np.array(32),
    }
    integers = {"split": np.array([0, 4, BINS, CELLS]), "joined": np.array([0, 4, CELLS])}
    nodes = [
        node("Conv", "images w1", "trunk", pads=[1, 1, 1, 1]),
        node("Relu", "trunk", "active"),
        node("Conv", "active w2", "logits"),
        node("Sigmoid", "logits", "scores"),
        node("Conv", "active w3", "distributions"),
        node("Reshape", "distributions split", "four"),
        node("Transpose", "four", "turned", perm=[0, 2, 1, 3]),
        node("Softmax", "turned", "shares", axis=1),
        node("Conv", "shares bins", "means"),
        node("Reshape", "means joined", "distances"),
        node("Mul", "distances stride", "boxes"),
    ]
    outputs: dict[str, list[str | int]] = {
        "scores": ["batch", 2, *IMAGE_SHAPE[1:]],
        "boxes": ["batch", 4, CELLS],
    }
    return graph_of(
        nodes,
        inputs={"images": ["batch", *IMAGE_SHAPE]},
        outputs=outputs | ({"logits": ["batch", 2, *IMAGE_SHAPE[1:]]} if raw else {}),
        constants={name: value.astype(np.float32) for name, value in constants.items()} | integers,
    )
