"""Graphs that take one image at a time, made to take batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx_nets import (  # noqa: E402
    IMAGE_SHAPE,
    assert_near,
    attention,
    boxes_without_batch,
    exported,
    filters,
    images,
    net,
    resized,
    run,
    run_each,
)
from small_graphs import graph_of  # noqa: E402

from split_infer_ros.onnx.batch import with_batch_of_one, with_symbolic_batch  # noqa: E402
from split_infer_ros.onnx.graph import OnnxGraph  # noqa: E402


@pytest.mark.parametrize("make", [attention, resized])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_constants_that_hold_the_batch_are_rewritten(make: Callable[[], OnnxGraph], count: int) -> None:
    graph = make()
    symbolic = with_symbolic_batch(graph, IMAGE_SHAPE)
    assert symbolic is not None
    assert symbolic.inputs[0].shape[0] is None
    assert_near(run(symbolic, images(5)[:count]), [each[:count] for each in run_each(graph, images(5))])


@pytest.mark.parametrize("by_dynamo", [False, True])
def test_exported_network_takes_batches(by_dynamo: bool) -> None:
    if by_dynamo:
        pytest.importorskip("onnxscript")
    graph = exported(net(), by_dynamo=by_dynamo, is_symbolic=False)
    assert graph.inputs[0].shape[0] == 1
    symbolic = with_symbolic_batch(graph, IMAGE_SHAPE)
    assert symbolic is not None
    assert_near(run(symbolic, images(3)), run_each(graph, images(3)))


def test_the_given_graph_stays_as_it_is() -> None:
    graph = attention()
    digest = graph.digest
    with_symbolic_batch(graph, IMAGE_SHAPE)
    assert OnnxGraph(graph.name, graph.proto).digest == digest


def test_a_slice_that_takes_less_than_the_batch_is_left() -> None:
    nodes = [
        onnx.helper.make_node("Conv", ["images", "filters"], ["map"]),
        onnx.helper.make_node("Slice", ["map", "one", "two", "axis"], ["result"]),
    ]
    bounds = {name: filters(1).astype("int64") * 0 + value for name, value in (("one", 1), ("two", 2), ("axis", 1))}
    graph = graph_of(
        nodes,
        inputs={"images": [1, *IMAGE_SHAPE]},
        outputs={"result": [1, 1, 16, 16]},
        constants={"filters": filters(4, 3, 1, 1), **bounds},
    )
    symbolic = with_symbolic_batch(graph, IMAGE_SHAPE)
    assert symbolic is not None
    assert_near(run(symbolic, images(3)), run_each(graph, images(3)))


def test_a_graph_of_unknown_shapes_is_left_as_it_is() -> None:
    graph = boxes_without_batch()
    symbolic = with_symbolic_batch(graph, IMAGE_SHAPE)
    assert symbolic is not None
    assert_near(run(symbolic, images(1)), run(graph, images(1)))


def test_batch_can_be_fixed_to_one() -> None:
    graph = with_batch_of_one(exported(net(), by_dynamo=False, is_symbolic=True))
    assert graph.inputs[0].shape == (1, *IMAGE_SHAPE)
    assert_near(run(graph, images(1)), run(exported(net(), by_dynamo=False, is_symbolic=False), images(1)))
