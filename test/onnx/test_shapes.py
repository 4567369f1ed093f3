"""Inferred shapes: where the batch is, and values that ONNX's own inference does not follow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx_nets import IMAGE_SHAPE, attention, boxes_without_batch, branching, images, integers, reused, sized  # noqa: E402
from small_graphs import graph_of  # noqa: E402

from split_infer_ros.onnx.constant_shapes import with_constant_shapes  # noqa: E402
from split_infer_ros.onnx.graph import OnnxGraph  # noqa: E402
from split_infer_ros.onnx.shapes import BATCH, infer_for, infer_shapes  # noqa: E402

helper = onnx.helper


def halved() -> OnnxGraph:
    """A graph whose shapes depend on a division, which ONNX's inference does not compute, for images of any size."""
    nodes = [
        helper.make_node("Shape", ["images"], ["shape"]),
        helper.make_node("Gather", ["shape", "two"], ["height"], axis=0),
        helper.make_node("Div", ["height", "two"], ["half"]),
        helper.make_node("Slice", ["images", "nought", "half", "two"], ["upper"]),
        helper.make_node("Shape", ["upper"], ["upper_shape"], start=2),
        helper.make_node("Mod", ["upper_shape", "five"], ["rest"]),
        helper.make_node("ConstantOfShape", ["rest"], ["zeros"]),
        helper.make_node("ReduceMax", ["upper"], ["result"], axes=[2, 3], keepdims=0),
    ]
    constants = {"two": integers(2), "nought": integers(0), "five": integers(5, 5)}
    return graph_of(
        nodes,
        inputs={"images": ["batch", 3, "height", "width"]},
        outputs={"result": ["batch", 3], "zeros": ["a", "b"]},
        constants=constants,
    )


def test_batch_is_found_wherever_it_is() -> None:
    shapes = infer_shapes(sized(), IMAGE_SHAPE)
    assert shapes["images"].dimensions == (BATCH, *IMAGE_SHAPE)
    assert shapes["rows"].image_shape == (8, 16)
    assert shapes["rows"].dtype == np.float32
    assert shapes["target"].dimensions == (3,)
    assert shapes["target"].dtype == np.int64
    moved = graph_of(
        [helper.make_node("Transpose", ["images"], ["result"], perm=[1, 0, 2, 3])],
        inputs={"images": ["batch", *IMAGE_SHAPE]},
        outputs={"result": [3, "batch", 16, 16]},
    )
    assert infer_shapes(moved, IMAGE_SHAPE)["result"].dimensions == (3, BATCH, 16, 16)
    assert infer_shapes(moved, IMAGE_SHAPE)["result"].image_shape is None


def test_values_that_shapes_depend_on_are_computed() -> None:
    shapes = infer_shapes(halved(), (3, 8, 14))
    assert shapes["upper"].image_shape == (3, 4, 14)
    assert shapes["zeros"].dimensions == (4, 4)
    assert shapes["zeros"].image_shape is None


def test_one_image_at_a_time_has_a_batch_of_one() -> None:
    shapes = infer_shapes(attention(), IMAGE_SHAPE)
    assert shapes["rows"].image_shape == (8, 16)
    assert shapes["tokens"].dimensions == (16, 1, 8)
    assert shapes["heads"].image_shape is None


@pytest.mark.parametrize("make", [sized, attention, reused, halved])
def test_every_shape_of_a_plain_graph_is_known(make: Callable[[], OnnxGraph]) -> None:
    graph = make()
    shapes = infer_shapes(graph, IMAGE_SHAPE)
    assert all(shapes[name].is_known for node in graph.proto.graph.node for name in node.output)


def test_what_depends_on_values_stays_unknown() -> None:
    shapes = infer_shapes(boxes_without_batch(), IMAGE_SHAPE)
    assert not shapes["places"].is_known
    assert shapes["positive"].is_known
    branches = infer_shapes(branching(), IMAGE_SHAPE)
    assert branches["condition"].dimensions == ()
    assert branches["condition"].image_shape is None


def test_shapes_are_those_of_the_computed_values() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    graph = attention()
    proto = onnx.ModelProto()
    proto.CopyFrom(graph.proto)
    names = [str(name) for node in proto.graph.node for name in node.output]
    proto.graph.ClearField("output")
    proto.graph.output.extend(helper.make_value_info(name, onnx.TypeProto()) for name in names)
    for output in proto.graph.output:
        output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    values = session.run(names, {"images": np.zeros((1, *IMAGE_SHAPE), np.float32)})
    shapes = infer_for(graph, (1, *IMAGE_SHAPE))
    assert {name: shapes[name].dimensions for name in names} == {
        name: value.shape for name, value in zip(names, values, strict=True)
    }


@pytest.mark.parametrize("make", [sized, reused, halved])
def test_constants_take_the_place_of_shapes(make: Callable[[], OnnxGraph]) -> None:
    """ONNX's own evaluator runs the same operators on the same numbers, so the results are equal bit by bit."""
    graph = make()
    found = with_constant_shapes(graph, IMAGE_SHAPE)
    for count in (1, 3):
        feeds = {"images": images(count).numpy()}
        runs = [ReferenceEvaluator(each.proto).run(None, feeds) for each in (graph, found)]
        for one, other in zip(*runs, strict=True):
            np.testing.assert_array_equal(one, other)
    assert "Shape" not in [node.op_type for node in found.proto.graph.node]


def test_target_of_a_reshape_leaves_the_batch_open() -> None:
    found = with_constant_shapes(sized(), IMAGE_SHAPE)
    (node,) = (each for each in found.proto.graph.node if each.op_type == "Reshape" and "rows" in each.output)
    targets = {each.name: onnx.numpy_helper.to_array(each).tolist() for each in found.proto.graph.initializer}
    assert targets[node.input[1]] == [-1, 8, 16]
