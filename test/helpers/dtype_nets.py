"""Random ONNX graphs in which a tensor of each dtype crosses at some split point. They need the package onnx."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx_nets import IMAGE_SHAPE, filters, integers
from small_graphs import graph_of

from split_infer_ros.onnx.graph import OnnxGraph

DTYPES = ("FLOAT16", "INT8", "UINT8", "INT32", "INT64", "BOOL")
CLASSES = 5


def drawn(seed: int, dtypes: tuple[str, ...] = DTYPES, batch: str | int = "batch") -> OnnxGraph:
    """Returns a classifier that casts its features to some dtypes, one after the other.

    It has an odd number of channels. It can be split behind each operator where one tensor crosses. Features are whole
    numbers from 0 to 100, which every dtype but bool can hold. Nothing is rounded between the first operator and the
    last, so the split point changes no bit of the result.

    Args:
        seed: decides the order of the dtypes, the number of channels, the size and the weights.
        dtypes: the dtypes, by their names in ``onnx.TensorProto``.
        batch: the batch size: a symbol or a number.
    """
    random = np.random.default_rng(seed)
    channels, kernel = int(random.integers(1, 5)) * 2 + 1, int(random.integers(4, 8))
    side = IMAGE_SHAPE[1] - kernel + 1
    nodes = [
        helper.make_node("Conv", ["images", "filters"], ["map"]),
        helper.make_node("Clip", ["map", "least", "most"], ["clipped"]),
        helper.make_node("Floor", ["clipped"], ["whole"]),
    ]
    value = "whole"
    for index, dtype in enumerate(random.permutation(dtypes), 1):
        cast, turned, other = f"cast_{index}", f"turned_{index}", f"other_{index}"
        nodes.append(helper.make_node("Cast", [value], [cast], to=getattr(TensorProto, dtype)))
        nodes.append(helper.make_node("Transpose", [cast], [turned], perm=[0, 1, 3, 2]))
        value = turned
        if random.random() < 0.5:
            nodes.append(helper.make_node("Cast", [cast], [other], to=TensorProto.FLOAT))
            back, joined = f"back_{index}", f"joined_{index}"
            nodes.append(helper.make_node("Cast", [turned], [back], to=TensorProto.FLOAT))
            nodes.append(helper.make_node("Max", [back, other], [joined]))
            value = joined
    nodes += [
        helper.make_node("Cast", [value], ["last"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["last", "flat"], ["rows"]),
        helper.make_node("MatMul", ["rows", "weights"], ["result"]),
    ]
    constants = {
        "filters": 60 * filters(channels, 3, kernel, kernel, seed=seed),
        "weights": 0.1 * filters(channels * side * side, CLASSES, seed=seed + 1),
        "flat": integers(0, -1),
        "least": np.array(0, np.float32),
        "most": np.array(100, np.float32),
    }
    return graph_of(
        nodes,
        inputs={"images": [batch, *IMAGE_SHAPE]},
        outputs={"result": [batch, CLASSES]},
        constants=constants,
        name=f"drawn_{seed}",
    )


def half_inside(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy of a model that computes in float16, as users make it. Inputs and outputs stay float32."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    copied = onnx.ModelProto()
    copied.CopyFrom(proto)
    converted: onnx.ModelProto = convert_float_to_float16(copied, keep_io_types=True)
    return converted
