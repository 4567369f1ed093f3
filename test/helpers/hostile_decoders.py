"""Small ONNX models that load, one for each layout of inputs and outputs that files have. They need onnx."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx_files import ultralytics

SIDE, PATCH = 32, 8
BOXES, CLASSES, BINS = 21, 3, 8  # 21 cells of strides 8, 16 and 32
FEATURES = 3 * (SIDE // PATCH) ** 2
NAMES = {"names": "['a', 'b', 'c']"}
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64

Making = tuple[str, tuple[int, ...]]
"""The kind of an output, see ``small_model``, and its shape without the batch."""


def small_model(
    outputs: Mapping[str, Making],
    *,
    batch: int | str = "batch",
    dtype: int = FLOAT,
    channels_last: bool = False,
    more: Mapping[str, tuple[int, Sequence[int | str]]] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Returns the bytes of a network with seeded weights.

    It computes the means of patches, a matrix product for each output, and then numbers of the output's kind.

    Args:
        outputs: the kind and shape of each output, by name. The kinds are: ``scores``, numbers of 0..1; ``logits`` and
            ``offsets``, any numbers; ``softmax``, numbers that sum to 1; ``corners``, boxes in pixels; ``unit``,
            numbers of 0..1 for boxes; ``cells``, scores and then any numbers; ``classes``, whole numbers; ``dets``,
            corners and a score; ``rows``, image, corners, class and score, (boxes, 7).
        batch: the batch size: a number or a symbol.
        dtype: the type of the images, of ``onnx.TensorProto``.
        channels_last: whether the images are (N, height, width, 3).
        more: type and shape of further inputs, by name.
        metadata: the metadata of the file.
    """
    random = np.random.default_rng(1)
    nodes, constants, source = [], {}, "images"
    if channels_last:
        nodes.append(helper.make_node("Transpose", [source], ["turned"], perm=[0, 3, 1, 2]))
        source = "turned"
    if dtype != FLOAT:
        nodes.append(helper.make_node("Cast", [source], ["cast"], to=FLOAT))
        source = "cast"
    nodes.append(helper.make_node("AveragePool", [source], ["pooled"], kernel_shape=[PATCH] * 2, strides=[PATCH] * 2))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
    values = []
    for name, (kind, shape) in outputs.items():
        made, dims = _made(name, kind, shape, random, constants, nodes, batch)
        values.append(helper.make_tensor_value_info(name, made, dims))
    for name in more or {}:  # the last output depends on them, or else they would be dropped
        first = nodes[-1].output[0]
        nodes[-1].output[0] = f"before_{name}"
        nodes.append(helper.make_node("Cast", [name], [f"cast_{name}"], to=values[-1].type.tensor_type.elem_type))
        nodes.append(helper.make_node("ReduceMin", [f"cast_{name}"], [f"least_{name}"], keepdims=0))
        nodes.append(helper.make_node("Sub", [f"least_{name}", f"least_{name}"], [f"nought_{name}"]))
        nodes.append(helper.make_node("Add", [f"before_{name}", f"nought_{name}"], [first]))
    shape = [batch, SIDE, SIDE, 3] if channels_last else [batch, 3, SIDE, SIDE]
    inputs = [helper.make_tensor_value_info("images", dtype, shape)]
    inputs += [helper.make_tensor_value_info(name, kind, list(dims)) for name, (kind, dims) in (more or {}).items()]
    stored = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, values, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, dict(metadata or {}))
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _made(
    name: str,
    kind: str,
    shape: Sequence[int],
    random: np.random.Generator,
    constants: dict[str, Any],
    nodes: list[Any],
    batch: int | str,
) -> tuple[int, list[int | str]]:
    """Appends the nodes of an output, and returns its type and dimensions."""

    def add(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def constant(suffix: str, value: Any) -> str:
        constants[f"{name}_{suffix}"] = np.asarray(value)
        return f"{name}_{suffix}"

    width = {"dets": (*shape[:-1], 5), "rows": (*shape[:-1], 7)}.get(kind, tuple(shape))
    weights = random.normal(0, 4, (FEATURES, int(np.prod(width)))).astype(np.float32)
    mixed = add("MatMul", ["flat", constant("weights", weights - weights.mean(0))], f"{name}_mixed")
    shaped = add("Reshape", [mixed, constant("shape", np.array([0, *width]))], f"{name}_shaped")
    if kind in ("logits", "offsets"):
        last = shaped
    elif kind == "cells":
        axis, ends = constant("axis", np.array([-1])), [0, CLASSES, width[-1]]
        places = [constant(f"at_{place}", np.array([place])) for place in ends]
        scores = add("Slice", [shaped, places[0], places[1], axis], f"{name}_logits")
        boxes = add("Slice", [shaped, places[1], places[2], axis], f"{name}_boxes")
        last = add("Concat", [add("Sigmoid", [scores], f"{name}_scores"), boxes], f"{name}_parts", axis=-1)
    elif kind == "softmax":
        last = add("Softmax", [shaped], f"{name}_soft", axis=-1)
    else:
        last = add("Sigmoid", [shaped], f"{name}_sigmoid")
    if kind in ("corners", "dets", "rows"):
        first = 1 if kind == "rows" else 0
        places = [constant(f"at_{place}", np.array([place])) for place in range(width[-1] + 1)]
        axis = constant("axis", np.array([-1]))
        left = add("Slice", [last, places[first], places[first + 2], axis], f"{name}_left")
        size = add("Slice", [last, places[first + 2], places[first + 4], axis], f"{name}_size")
        right = add("Add", [left, size], f"{name}_right")
        boxes = add("Concat", [left, right], f"{name}_unit", axis=-1)
        last_boxes = add("Mul", [boxes, constant("scale", np.array(SIDE / 2, np.float32))], f"{name}_pixels")
        parts = [last_boxes]
        if kind == "dets":
            parts.append(add("Slice", [last, places[4], places[5], axis], f"{name}_score"))
        if kind == "rows":
            image = add("Slice", [last, places[0], places[1], axis], f"{name}_one")
            image = add("Sub", [image, image], f"{name}_image")
            parts = [image, last_boxes, image, add("Slice", [last, places[6], places[7], axis], f"{name}_score")]
        last = add("Concat", parts, f"{name}_parts", axis=-1) if len(parts) > 1 else last_boxes
        if kind == "rows":
            last = add("Reshape", [last, constant("form", np.array([-1, 7]))], f"{name}_flat")
            add("Identity", [last], name)
            return FLOAT, ["boxes", 7]
    if kind == "classes":
        scaled = add("Mul", [last, constant("scale", np.array(CLASSES - 0.01, np.float32))], f"{name}_scaled")
        add("Cast", [scaled], name, to=INT64)
        return INT64, [batch, *shape]
    add("Identity", [last], name)
    return FLOAT, [batch, *width]


def raw(**more: Any) -> bytes:
    """Returns a model with an output that no decoder knows: boxes, objectness and scores (N, 21, 8), all of 0..1."""
    return small_model({"raw": ("scores", (BOXES, 5 + CLASSES))}, **more)


def anchored() -> bytes:
    """Returns a model with boxes as offsets from anchors."""
    return small_model({"offsets": ("offsets", (BOXES, 4)), "confidences": ("softmax", (BOXES, CLASSES + 1))})


def distributed() -> bytes:
    """Returns a model with boxes as distributions, in a map for each of three levels."""
    sides = (4, 2, 1)
    boxes: dict[str, Making] = {f"boxes_{side}": ("offsets", (4 * BINS, side, side)) for side in sides}
    return small_model(boxes | {f"scores_{side}": ("scores", (CLASSES, side, side)) for side in sides})


@cache
def decoder_models() -> tuple[bytes, ...]:
    """Returns models that load: one for each kind of decoder, and some with several inputs or a fixed batch."""
    heat: dict[str, Making] = {
        "hm": ("scores", (CLASSES, 8, 8)),
        "wh": ("unit", (2, 8, 8)),
        "reg": ("unit", (2, 8, 8)),
    }
    pair: dict[str, Making] = {"boxes": ("corners", (BOXES, 4)), "scores": ("scores", (BOXES, CLASSES))}
    counted: dict[str, Making] = {
        "num_dets": ("classes", (1,)),
        "det_boxes": ("corners", (BOXES, 4)),
        "det_scores": ("scores", (BOXES,)),
        "det_classes": ("classes", (BOXES,)),
    }
    names: dict[str, Any] = {"metadata": NAMES}
    yolo = {"metadata": ultralytics(imgsz=f"[{SIDE}, {SIDE}]", names=NAMES["names"], task="classify")}
    size = {"orig_target_sizes": (INT64, ["batch", 2])}
    return (
        small_model(pair, **names),
        small_model({"dets": ("dets", (BOXES, 5)), "labels": ("classes", (BOXES,))}, **names),
        small_model(counted, **names),
        small_model({"output": ("cells", (BOXES, CLASSES + 4 * BINS))}, **names),
        small_model({"rows": ("rows", (BOXES, 7))}, **names),
        small_model(heat, **names),
        small_model({"logits": ("logits", (1000,))}),
        small_model({"probabilities": ("softmax", (CLASSES,))}, **yolo),
        small_model(pair, dtype=TensorProto.UINT8, **names),
        small_model(pair, dtype=TensorProto.FLOAT16, **names),
        small_model(pair, channels_last=True, dtype=TensorProto.UINT8, **names),
        small_model(pair, more=size, **names),
        small_model(pair, batch=4, **names),
        small_model({"probabilities": ("softmax", (CLASSES,))}, batch=4, **yolo),
    )
