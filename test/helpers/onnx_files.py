"""Small ONNX models with the inputs, outputs and metadata of exporters. They need the package onnx."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from split_infer_ros.onnx.graph import OnnxGraph

Shape = Sequence[int | str]

COCO_SIZED = str({number: f"class {number}" for number in range(80)})
FLOAT = TensorProto.FLOAT


def ultralytics(**more: str) -> dict[str, str]:
    """Returns metadata as Ultralytics' exporter writes it. ``more`` adds or replaces entries."""
    found = {
        "description": "Ultralytics YOLOv8n model",
        "author": "Ultralytics",
        "version": "8.4.190",
        "stride": "32",
        "task": "detect",
        "head": "Detect",
        "batch": "1",
        "imgsz": "[640, 640]",
        "names": COCO_SIZED,
        "args": "{'batch': 1, 'half': False, 'nms': False}",
        "channels": "3",
        "end2end": "False",
    }
    return found | more


def hollow(
    outputs: Mapping[str, Shape],
    *,
    metadata: Mapping[str, str] | None = None,
    inputs: Mapping[str, Shape] | None = None,
    dtypes: Mapping[str, int] | None = None,
    operators: Sequence[str] = ("Conv",),
) -> OnnxGraph:
    """Returns a graph that only looks like a model: its nodes are not connected, so it cannot run.

    Args:
        outputs: the shapes of the outputs, by name.
        metadata: the metadata.
        inputs: the shapes of the inputs, by name; by default one image of 640x640 pixels.
        dtypes: types of ``onnx.TensorProto`` for inputs and outputs, by name; others are float32.
        operators: the operators of the nodes.
    """
    inputs, dtypes = inputs or {"images": (1, 3, 640, 640)}, dtypes or {}
    infos = [
        [helper.make_tensor_value_info(name, dtypes.get(name, FLOAT), list(shape)) for name, shape in group.items()]
        for group in (inputs, outputs)
    ]
    nodes = [helper.make_node(operator, ["x"], [f"y{place}"]) for place, operator in enumerate(operators)]
    model = helper.make_model(helper.make_graph(nodes, "graph", *infos))
    helper.set_model_props(model, dict(metadata or {}))
    return OnnxGraph("model.onnx", model)


def network(
    rows: int,
    columns: int,
    *,
    side: int = 32,
    metadata: Mapping[str, str] | None = None,
    scale: Sequence[float] = (1.0,),
    batch: int | str = "batch",
    transposed: bool = False,
) -> onnx.ModelProto:
    """Returns a network with seeded weights. It maps images (N, 3, side, side) to (N, rows, columns).

    It computes the means of patches, a matrix product, a sigmoid and a scale.

    Args:
        rows, columns: the shape of the output for an image, before it is transposed.
        side: the side of an image, in pixels.
        metadata: the metadata of the file.
        scale: a factor for each column, or one factor for all.
        batch: the batch size: a number or a symbol.
        transposed: whether the output is (N, columns, rows).
    """
    random = np.random.default_rng(0)
    patches = 3 * (side // 8) ** 2
    weights = random.normal(0, 12, (patches, rows * columns)).astype(np.float32)
    weights -= weights.mean(0)  # so that brightness alone changes little
    constants = {
        "weights": weights,
        "bias": random.normal(0, 1, rows * columns).astype(np.float32),
        "shape": np.array([0, rows, columns]),
        "scale": np.array(scale, dtype=np.float32),
    }
    last = "scaled" if transposed else "output0"
    nodes = [
        helper.make_node("AveragePool", ["images"], ["pooled"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weights", "bias"], ["mixed"]),
        helper.make_node("Sigmoid", ["mixed"], ["sigmoid"]),
        helper.make_node("Reshape", ["sigmoid", "shape"], ["shaped"]),
        helper.make_node("Mul", ["shaped", "scale"], [last]),
    ]
    if transposed:
        nodes.append(helper.make_node("Transpose", ["scaled"], ["output0"], perm=[0, 2, 1]))
    shape = (batch, columns, rows) if transposed else (batch, rows, columns)
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("images", FLOAT, [batch, 3, side, side])],
        [helper.make_tensor_value_info("output0", FLOAT, list(shape))],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, dict(metadata or {}))
    onnx.checker.check_model(model)
    return model
