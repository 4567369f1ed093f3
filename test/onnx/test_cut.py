"""Parts of graphs, cut wherever that is possible: the two parts together give what the whole gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx_nets import (
    IMAGE_SHAPE,
    assert_near,
    attention,
    branching,
    images,
    resized,
    reused,
    run,
    run_each,
    sized,
)

from split_infer_ros.onnx.batch import with_symbolic_batch
from split_infer_ros.onnx.cut import Cutter
from split_infer_ros.onnx.dataflow import Dataflow
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.shapes import infer_shapes

pytestmark = pytest.mark.numeric


def cuttable(graph: OnnxGraph) -> tuple[Cutter, Dataflow, list[int]]:
    """A cutter, and all places at which only values with the batch in front cross."""
    shapes = infer_shapes(graph, IMAGE_SHAPE)
    dataflow = Dataflow(graph, shapes)

    def crosses(name: str) -> bool:
        return name in shapes and shapes[name].image_shape is not None

    places = [place for place in range(len(dataflow.nodes) + 1) if all(map(crosses, dataflow.live(place)))]
    return Cutter(graph, dataflow, shapes), dataflow, places


@pytest.mark.parametrize(("make", "count"), [(sized, 6), (branching, 6), (reused, 6), (attention, 7), (resized, 4)])
def test_both_parts_together_give_the_result_of_the_whole(make: Callable[[], OnnxGraph], count: int) -> None:
    graph = make()
    whole = graph if graph.inputs[0].shape[0] is None else with_symbolic_batch(graph, IMAGE_SHAPE)
    assert whole is not None
    cutter, dataflow, places = cuttable(whole)
    assert len({tuple(dataflow.live(place)) for place in places}) == count
    batch = images(3)
    expected = run_each(graph, batch)
    for place in places:
        first, second = cutter.cut("first", 0, place), cutter.cut("second", place, len(dataflow.nodes))
        assert_near(run(second, *run(first, batch)), expected)


def test_an_if_is_never_cut_and_its_values_are_alive_before_it() -> None:
    graph = branching()
    _, dataflow, places = cuttable(graph)
    names = [str(node.op_type) for node in dataflow.nodes]
    assert dataflow.live(names.index("If")) == ["map", "condition", "negative"]
    assert not set(places) & set(range(names.index("ReduceMin") + 1, names.index("If") + 1))
    assert {names.index("Abs"), names.index("If") + 1} <= set(places)


def test_batch_sizes_cross_no_place() -> None:
    cutter, dataflow, places = cuttable(sized())
    assert places == list(range(len(dataflow.nodes) + 1))
    operators = [str(node.op_type) for node in dataflow.nodes]
    behind = cutter.cut("behind", operators.index("Relu"), len(operators))
    assert [tensor.name for tensor in behind.inputs] == ["map"]
    assert run(behind, torch.ones(5, 8, 4, 4))[0].shape == (5, 8, 5)  # the batch size is that of what crossed


def test_parts_have_only_their_own_weights() -> None:
    cutter, dataflow, _ = cuttable(sized())
    place = [str(node.op_type) for node in dataflow.nodes].index("Relu") + 1
    parts = cutter.cut("first", 0, place), cutter.cut("second", place, len(dataflow.nodes))
    first, second = ({str(each.name) for each in part.proto.graph.initializer} for part in parts)
    assert "filters" in first
    assert "filters" not in second
    assert {"more", "mixing"} <= second
    assert cutter.weights_of(0, place) == ["filters"]


def test_what_crosses_as_it_is_has_another_name_behind() -> None:
    cutter, _, _ = cuttable(reused())
    middle = cutter.cut("middle", 2, 3)
    assert [tensor.name for tensor in middle.inputs] == ["images", "map", "square"]
    assert [tensor.name for tensor in middle.outputs] == [
        "split_infer_ros/passed/images",
        "split_infer_ros/passed/map",
        "split_infer_ros/passed/square",
        "second",
    ]
    batch = images(2)
    passed = run(middle, batch, batch + 1, batch + 2)
    assert torch.equal(passed[0], batch)
    assert torch.equal(passed[2], batch + 2)


def test_parts_state_their_shapes() -> None:
    cutter, dataflow, _ = cuttable(sized())
    part = cutter.cut("part", 0, [str(node.op_type) for node in dataflow.nodes].index("Relu") + 1)
    assert [tensor.shape for tensor in (*part.inputs, *part.outputs)] == [(None, 3, 16, 16), (None, 8, 4, 4)]
    alone, _, _ = cuttable(sized(batch=1))
    assert alone.cut("whole", 0, len(dataflow.nodes)).outputs[0].shape == (1, 8, 5)
