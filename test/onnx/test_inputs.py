"""Graphs of other inputs and outputs, made to take float32 images (N, 3, h, w) and to give float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from split_infer_ros.buffers.host_arrays import FLOAT32  # noqa: E402
from split_infer_ros.onnx.graph import OnnxGraph  # noqa: E402
from split_infer_ros.onnx.inputs import GraphEnds, ImageForm, needs_float32  # noqa: E402

HEIGHT, WIDTH = 6, 9
Array = np.ndarray
KINDS = {"float32": 1, "float16": 10, "double": 11, "uint8": 2, "int8": 3, "int32": 6, "int64": 7}


def echo(shape: Sequence[int | str], kind: int, opset: int = 17, more: Sequence[onnx.NodeProto] = ()) -> OnnxGraph:
    """A graph that gives its images as float32, in their own form."""
    nodes = [helper.make_node("Cast", ["images"], ["out"], to=TensorProto.FLOAT), *more]
    return graph_of(nodes, {"images": (kind, shape)}, {"out": (TensorProto.FLOAT, shape)}, opset)


def graph_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, Sequence[int | str]]],
    outputs: dict[str, tuple[int, Sequence[int | str]]],
    opset: int = 17,
    constants: dict[str, Array] | None = None,
) -> OnnxGraph:
    values = [
        [helper.make_tensor_value_info(name, kind, list(shape)) for name, (kind, shape) in each]
        for each in (inputs.items(), outputs.items())
    ]
    weights = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "graph", *values, weights)
    versions = {9: 4, 12: 7, 13: 7, 17: 8, 21: 10}
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=versions[opset])
    onnx.checker.check_model(model)
    return OnnxGraph("model.onnx", model)


def run(graph: OnnxGraph, images: Array) -> list[Array]:
    onnx.checker.check_model(graph.proto, full_check=True)
    session = runtime.InferenceSession(graph.proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (name,) = [each.name for each in session.get_inputs()]
    return session.run(None, {name: images})  # type: ignore[no-any-return]


def taking(graph: OnnxGraph, form: ImageForm, *, adds_batch: bool = False) -> OnnxGraph:
    ends = GraphEnds(graph)
    ends.take_images(form, HEIGHT, WIDTH)
    ends.give_float32(adds_batch=adds_batch)
    return ends.result()


def levels(count: int) -> Array:
    """Images with values between and outside grey values, which whole numbers cannot hold."""
    return np.random.default_rng(3).uniform(-9, 270, (count, 3, HEIGHT, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("opset", [9, 12, 13, 21])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_channels_last", [False, True])
def test_any_type_and_order_gets_the_same_image(kind: str, is_channels_last: bool, opset: int) -> None:
    shape = ("N", HEIGHT, WIDTH, 3) if is_channels_last else ("N", 3, HEIGHT, WIDTH)
    graph = echo(shape, KINDS[kind], opset)
    edited = taking(graph, ImageForm(graph.inputs[0], 3, is_channels_last=is_channels_last))
    (taken,) = edited.inputs
    assert (taken.shape, taken.dtype) == ((None, 3, HEIGHT, WIDTH), FLOAT32)
    images = levels(2)
    expected = images.transpose(0, 2, 3, 1) if is_channels_last else images
    if "int" in kind:  # exact: the steps are exact on numbers of this size
        expected = np.clip(np.floor(expected + np.float32(0.5)), 0, 255) - (128 if kind == "int8" else 0)
    elif kind == "float16":
        expected = expected.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(run(edited, images)[0], expected)


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("shape", [("N", 1, HEIGHT, WIDTH), ("N", HEIGHT, WIDTH, 1)])
def test_grey_is_opencvs_luma(shape: Sequence[int | str], opset: int) -> None:
    """OpenCV rounds in fixed point with 14 bits, so a grey value may differ by one."""
    graph = echo(shape, TensorProto.UINT8, opset)
    form = ImageForm(graph.inputs[0], 1, is_channels_last=shape[3] == 1)
    images = np.random.default_rng(4).integers(0, 256, (2, HEIGHT, WIDTH, 3), dtype=np.uint8)
    (found,) = run(taking(graph, form), images.transpose(0, 3, 1, 2).astype(np.float32))
    for image, grey in zip(images, found, strict=True):
        expected = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32)
        assert np.abs(grey.reshape(HEIGHT, WIDTH) - expected).max() <= 1


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("is_channels_last", [False, True])
def test_a_batch_of_one_is_put_around_a_graph_without(is_channels_last: bool, opset: int) -> None:
    shape = (HEIGHT, WIDTH, 3) if is_channels_last else (3, HEIGHT, WIDTH)
    graph = echo(shape, TensorProto.FLOAT, opset)
    form = ImageForm(graph.inputs[0], 3, is_channels_last=is_channels_last, has_batch=False)
    edited = taking(graph, form, adds_batch=True)
    assert edited.inputs[0].shape == (1, 3, HEIGHT, WIDTH)
    assert edited.outputs[0].name == "out"
    assert edited.outputs[0].shape == (1, *shape)
    images = levels(1)
    expected = images.transpose(0, 2, 3, 1) if is_channels_last else images
    np.testing.assert_array_equal(run(edited, images)[0], expected)  # only copied


@pytest.mark.parametrize("kind", ["float16", "double"])
def test_outputs_become_float32_and_keep_their_names(kind: str) -> None:
    """A value may be an output, be read by other nodes, and be read by the branches of an If."""
    own = KINDS[kind]
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(operator, ["doubled"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, own, None)],
        )
        for name, operator in (("then", "Neg"), ("else", "Abs"))
    }
    nodes = [
        helper.make_node("Cast", ["images"], ["cast"], to=own),
        helper.make_node("Add", ["cast", "cast"], ["doubled"]),
        helper.make_node("Neg", ["doubled"], ["negative"]),
        helper.make_node("If", ["yes"], ["chosen"], **branches),
        helper.make_node("Shape", ["doubled"], ["shape"]),
    ]
    shape = ("N", 3, HEIGHT, WIDTH)
    outputs = dict.fromkeys(("doubled", "negative", "chosen"), (own, shape)) | {"shape": (TensorProto.INT64, (4,))}
    graph = graph_of(nodes, {"images": (1, shape)}, outputs, constants={"yes": np.array(True)})
    assert needs_float32(graph)
    edited = taking(graph, ImageForm(graph.inputs[0], 3))
    assert not needs_float32(edited)
    assert [each.name for each in edited.outputs] == ["doubled", "negative", "chosen", "shape"]
    images = np.arange(2 * 3 * HEIGHT * WIDTH, dtype=np.float32).reshape(2, 3, HEIGHT, WIDTH)  # whole: all are exact
    doubled, negative, chosen, lengths = run(edited, images)
    np.testing.assert_array_equal(doubled, 2 * images)
    np.testing.assert_array_equal(negative, -2 * images)
    np.testing.assert_array_equal(chosen, -2 * images)
    assert lengths.tolist() == [2, 3, HEIGHT, WIDTH]


@pytest.mark.parametrize("kind", ["int64", "int32", "float32", "float16"])
@pytest.mark.parametrize("batch", ["N", 1, 4])
def test_a_filled_input_is_repeated_for_each_image(kind: str, batch: int | str) -> None:
    shape = (batch, 3, HEIGHT, WIDTH)
    nodes = [
        helper.make_node("Identity", ["images"], ["out"]),
        helper.make_node("Cast", ["sizes"], ["told"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["mask"], ["shown"], to=TensorProto.FLOAT),
    ]
    inputs = {
        "images": (TensorProto.FLOAT, shape),
        "sizes": (KINDS[kind], (batch, 2)),
        "mask": (TensorProto.BOOL, (batch, HEIGHT, WIDTH)),
    }
    outputs = {"out": (1, shape), "told": (1, (batch, 2)), "shown": (1, (batch, HEIGHT, WIDTH))}
    graph = graph_of(nodes, inputs, outputs)
    ends = GraphEnds(graph)
    ends.take_images(ImageForm(graph.inputs[0], 3), HEIGHT, WIDTH)
    ends.fill("sizes", (WIDTH, HEIGHT), (2,), is_repeated=True)
    ends.fill("mask", (1,), (HEIGHT, WIDTH), is_repeated=True)
    edited = ends.result()
    assert [each.name for each in edited.inputs] == ["images"]
    count = batch if isinstance(batch, int) else 3
    _, told, shown = run(edited, levels(count))
    assert told.tolist() == [[WIDTH, HEIGHT]] * count
    assert (shown == np.ones((count, HEIGHT, WIDTH))).all()


@pytest.mark.parametrize("lengths", [(), (1,), (1, 1)])
def test_single_numbers_are_filled(lengths: tuple[int, ...]) -> None:
    nodes = [helper.make_node("Add", ["images", "score"], ["out"])]
    inputs = {"images": (1, ("N", 3, HEIGHT, WIDTH)), "score": (1, lengths), "unused": (7, (1,))}
    graph = graph_of(nodes, inputs, {"out": (1, ("N", 3, HEIGHT, WIDTH))})
    ends = GraphEnds(graph)
    ends.take_images(ImageForm(graph.inputs[0], 3), HEIGHT, WIDTH)
    ends.fill("score", (0.25,), lengths, is_repeated=False)
    ends.drop("unused")
    images = np.zeros((1, 3, HEIGHT, WIDTH), np.float32)
    assert (run(ends.result(), images)[0] == 0.25).all()


@pytest.mark.parametrize("edit", [lambda form: taking(form[0], form[1]), lambda form: taking(*form, adds_batch=True)])
def test_the_given_graph_stays_as_it_is(edit: Callable[[tuple[OnnxGraph, ImageForm]], OnnxGraph]) -> None:
    graph = echo((1, HEIGHT, WIDTH, 1), TensorProto.UINT8)
    digest = graph.digest
    form = ImageForm(graph.inputs[0], 1, is_channels_last=True)
    assert edit((graph, form)).digest == edit((graph, form)).digest  # names are the same each time
    assert OnnxGraph(graph.name, graph.proto).digest == digest
