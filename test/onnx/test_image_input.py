"""Which input takes the images, in which form and size, and what fills the others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_files import Shape, hollow, ultralytics  # noqa: E402

from split_infer_ros.buffers.host_arrays import FLOAT32  # noqa: E402
from split_infer_ros.errors import ConfigurationError  # noqa: E402
from split_infer_ros.onnx.graph import OnnxGraph  # noqa: E402
from split_infer_ros.onnx.image_input import OnnxImageInput, read_image_input  # noqa: E402

YOLOV8: dict[str, Shape] = {"output0": (1, 84, 8400)}
FLOAT, UINT8, INT64, BOOL = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT64, TensorProto.BOOL


def read(shape: Shape, dtype: int = FLOAT, input_size: str = "", **metadata: str) -> OnnxImageInput:
    graph = hollow(YOLOV8, inputs={"images": shape}, dtypes={"images": dtype}, metadata=metadata)
    return read_image_input(graph, input_size)


@pytest.mark.parametrize("shape", [(1, 3, 48, 64), ("N", 3, 48, 64), ("N", "c", 48, 64), (8, 3, 48, 64)])
def test_a_graph_that_needs_nothing_is_returned_itself(shape: Shape) -> None:
    graph = hollow(YOLOV8, inputs={"images": shape})
    found = read_image_input(graph)
    assert found.graph is graph
    assert (found.height, found.width, found.levels, found.is_grey, found.filled) == (48, 64, False, False, ())


@pytest.mark.parametrize(
    ("shape", "batch"),
    [
        (("N", 48, 64, 3), None),
        (("N", 48, 64, 1), None),
        (("N", 1, 48, 64), None),
        ((4, 48, 64, 3), 4),
        ((3, 48, 64), 1),
        ((1, 48, 64), 1),
        ((48, 64, 3), 1),
    ],
)
@pytest.mark.parametrize("dtype", [FLOAT, UINT8, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT8])
def test_images_of_any_form_are_taken(shape: Shape, batch: int | None, dtype: int) -> None:
    found = read(shape, dtype)
    assert (found.height, found.width) == (48, 64)
    (taken,) = found.graph.inputs
    assert (taken.shape, taken.dtype) == ((batch, 3, 48, 64), FLOAT32)
    assert found.levels is (dtype in (UINT8, TensorProto.INT8))
    assert found.is_grey is (1 in shape)


@pytest.mark.parametrize(
    ("shape", "metadata", "wanted", "size"),
    [
        (("N", "h", "w", 3), {}, "64x96", (64, 96)),
        (("N", "h", "w", 3), {"imgsz": "[96, 64]"}, "", (96, 64)),
        (("N", "c", "h", "w"), {}, "64x96", (64, 96)),
        ((3, "h", "w"), {}, "64x96", (64, 96)),
        (("N", 1, 48, "w"), {}, "48x96", (48, 96)),
    ],
)
def test_open_sizes_are_set_in_every_form(
    shape: Shape, metadata: Mapping[str, str], wanted: str, size: tuple[int, int]
) -> None:
    found = read(shape, FLOAT, wanted, **metadata)
    assert (found.height, found.width, found.filled) == (*size, ())


@pytest.mark.parametrize("shape", [("N", 48, 64, 3), (3, 48, 64), ("N", 3, 48, "w")])
def test_a_size_that_the_file_does_not_take_is_refused(shape: Shape) -> None:
    with pytest.raises(ConfigurationError, match=r"input_size is 64x96, but model.onnx takes only 48x(64|\?)"):
        read(shape, FLOAT, "64x96")


def test_a_size_that_nobody_names_is_a_usual_one() -> None:
    found = read(("N", 3, "h", "w"))
    assert (found.height, found.width) == (640, 640)
    (note,) = found.filled
    assert note == (
        "model.onnx takes images ?x? (height x width), and its metadata names no size, so it runs at 640x640; "
        "input_size sets another size."
    )
    classifier = hollow({"logits": ("N", 10)}, inputs={"images": ("N", 3, "h", "w")})
    assert read_image_input(classifier).height == 224


@pytest.mark.parametrize("imgsz", ["", "[0, 640]", "[640]", "[1e9, 640]", "[99999999, 640]", "'a'", "[[[", "open('x')"])
def test_metadata_without_a_possible_size_names_none(imgsz: str) -> None:
    assert read(("N", 3, "h", "w"), imgsz=imgsz).filled != ()


@pytest.mark.parametrize("side", [320, 300])
def test_a_usual_size_fits_the_graph(side: int) -> None:
    """The weights of the last product fit one size only."""
    nodes = [
        helper.make_node("AveragePool", ["images"], ["pooled"], kernel_shape=[20, 20], strides=[20, 20]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["mixed"]),
        helper.make_node("Reshape", ["mixed", "shape"], ["out"]),
    ]
    weights = np.zeros((3 * (side // 20) ** 2, 12), np.float32)
    constants = {"weights": weights, "shape": np.array([0, 2, 6])}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("images", FLOAT, ["N", 3, "h", "w"])],
        [helper.make_tensor_value_info("out", FLOAT, ["N", 2, 6])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = read_image_input(OnnxGraph("model.onnx", model))
    assert (found.height, found.width) == (side, side)


def test_a_side_that_is_too_long_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"takes images 9000x64 \(height x width\); sides up to 8192"):
        read(("N", 3, 9000, 64))


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "value"),
    [
        ("orig_target_sizes", INT64, ("N", 2), [[64, 48]] * 2),
        ("target_sizes", FLOAT, ("N", 2), [[64, 48]] * 2),
        ("im_shape", FLOAT, ("N", 2), [[48, 64]] * 2),
        ("image_shape", FLOAT, (1, 2), [[48, 64]]),
        ("serving_default/image_shape:0", INT64, ("b", 2), [[48, 64]] * 2),
        ("im_info", FLOAT, ("N", 3), [[48, 64, 1]] * 2),
        ("scale_factor", FLOAT, ("N", 2), [[1, 1]] * 2),
        ("orig_size", INT64, (2,), [64, 48]),
        ("pixel_mask", INT64, ("N", 48, 64), np.ones((2, 48, 64)).tolist()),
        ("pixel_mask", BOOL, ("N", "h", "w"), np.ones((2, 48, 64)).tolist()),
        ("iou_threshold", FLOAT, (), 0.5),
        ("nms_thresh", FLOAT, (1,), [0.5]),
        ("score_threshold", FLOAT, (1,), [0.05]),
        ("Conf-Thres", TensorProto.DOUBLE, (1,), [0.05]),
        ("max_output_boxes_per_class", INT64, (1,), [300]),
        ("topk", TensorProto.INT32, (), 300),
    ],
)
def test_known_second_inputs_are_filled(name: str, dtype: int, shape: Shape, value: object) -> None:
    graph = two_inputs({"images": (FLOAT, ("N", 3, 48, 64)), name: (dtype, shape)})
    found = read_image_input(graph)
    assert [tensor.name for tensor in found.graph.inputs] == ["images"]
    assert len(found.filled) == 1
    assert f"'{name}' of model.onnx is filled with" in found.filled[0]
    session = runtime.InferenceSession(found.graph.proto.SerializeToString(), providers=["CPUExecutionProvider"])
    out, told = session.run(None, {"images": np.zeros((2, 3, 48, 64), np.float32)})
    assert out.shape == (2, 3, 48, 64)
    np.testing.assert_array_equal(told, np.array(value, np.float32))  # whole numbers, or one rounding to float32


def two_inputs(inputs: Mapping[str, tuple[int, Shape]]) -> OnnxGraph:
    """A graph that gives each of its inputs as float32."""
    nodes = [helper.make_node("Cast", [name], [f"y{place}"], to=FLOAT) for place, name in enumerate(inputs)]
    infos = [helper.make_tensor_value_info(name, dtype, list(shape)) for name, (dtype, shape) in inputs.items()]
    outputs = [
        helper.make_tensor_value_info(f"y{place}", FLOAT, [None] * len(shape))
        for place, (_, shape) in enumerate(inputs.values())
    ]
    graph = helper.make_graph(nodes, "graph", infos, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return OnnxGraph("model.onnx", model)


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("prompt", INT64, ("N", 77)),
        ("orig_target_sizes", INT64, ("N", 3)),
        ("pixel_mask", INT64, ("N", 10, 64)),
        ("score_threshold", INT64, (1,)),
        ("iou_threshold", FLOAT, (80,)),
        ("unknown_threshold", FLOAT, (1,)),
    ],
)
def test_second_inputs_that_cannot_be_filled_are_refused(name: str, dtype: int, shape: Shape) -> None:
    graph = two_inputs({"images": (FLOAT, ("N", 3, 48, 64)), name: (dtype, shape)})
    with pytest.raises(
        ConfigurationError, match=f"cannot fill '{name}'. Beside images, it supplies .*scale_factor"
    ) as e:
        read_image_input(graph)
    assert str(graph.inputs[1]) in str(e.value)


def test_an_input_that_nothing_reads_is_dropped() -> None:
    graph = hollow(YOLOV8, inputs={"images": (1, 3, 48, 64), "training": ()}, dtypes={"training": BOOL})
    assert [tensor.name for tensor in read_image_input(graph).graph.inputs] == ["images"]


@pytest.mark.parametrize(
    ("inputs", "dtype"),
    [
        ({"images": (1, 3, 640)}, FLOAT),
        ({"images": (1, 4, 640, 640)}, FLOAT),
        ({"images": (1, 3, 8, 640, 640)}, FLOAT),
        ({"images": (1, 3, 640, 640)}, BOOL),
        ({"images": (1, 784)}, FLOAT),
        ({"left": (1, 3, 64, 64), "right": (1, 3, 64, 64)}, FLOAT),
        ({"none": ()}, FLOAT),
    ],
)
def test_an_input_that_is_no_image_is_refused(inputs: Mapping[str, Shape], dtype: int) -> None:
    graph = hollow(YOLOV8, inputs=inputs, dtypes={"images": dtype}, metadata=ultralytics())
    with pytest.raises(
        ConfigurationError, match=r"one input of images, such as float32 images \(N, 3, height, width\)"
    ) as e:
        read_image_input(graph)
    assert all(str(tensor) in str(e.value) for tensor in graph.inputs)
