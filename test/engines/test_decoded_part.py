"""In 16 bits, what decodes a model's results stays in float32: the graph is divided behind its last layers.

Whether a processor has bf16 does not matter here. Both parts run in float32, and a test looks at the precision in
which each is made.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import NodeProto, helper
from openvino_devices import Device, pretend_devices
from small_graphs import IMAGE_SHAPE, graph_of, images

from split_infer_ros.engines import executable
from split_infer_ros.engines.decoded_part import DecodedPart, divide, make_decoded
from split_infer_ros.engines.engine import Engine, parse_engine
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.onnxruntime_part import OnnxRuntimePart
from split_infer_ros.engines.precision import Precision
from split_infer_ros.onnx.graph import OnnxGraph

CELLS = IMAGE_SHAPE[1] * IMAGE_SHAPE[2]
BINS = 16


def node(operator: str, inputs: str, output: str, **attributes: object) -> NodeProto:
    return helper.make_node(operator, inputs.split(), [output], **attributes)


def detector(*, raw: bool = False) -> OnnxGraph:
    """A detector whose boxes are the means of distributions over 16 bins, which a convolution computes.

    Its scores come first in the graph, so decoding and layers take turns. With ``raw``, what the last layer gives is a
    result as well.
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


def operators(graph: OnnxGraph) -> list[str]:
    return [each.op_type for each in graph.proto.graph.node]


def test_a_graph_is_divided_behind_its_last_layers() -> None:
    parts = divide(detector())
    assert parts is not None
    network, decoding = parts
    assert operators(network) == ["Conv", "Relu", "Conv", "Conv"]
    assert operators(decoding) == ["Sigmoid", "Reshape", "Transpose", "Softmax", "Conv", "Reshape", "Mul"]


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_both_parts_give_the_results_of_the_whole(count: int, raw: bool) -> None:
    """The same operators run on the same values. Engines may fuse them otherwise, so results differ by rounding."""
    made: list[tuple[str, Precision]] = []

    def make(graph: OnnxGraph, precision: Precision) -> EnginePart:
        made.append((graph.name, precision))
        return OnnxRuntimePart(graph)

    graph = detector(raw=raw)
    part = make_decoded(graph, Precision.BF16, make)
    assert isinstance(part, DecodedPart)
    assert [precision for _, precision in made] == [Precision.BF16, Precision.FP32]
    found, expected = part(images(count)), OnnxRuntimePart(graph)(images(count))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))
    into = [torch.empty_like(each) for each in expected]
    if part.can_run_into:
        part.run_into(into, images(count))
        assert all(torch.equal(one, other) for one, other in zip(into, found, strict=True))


def test_what_only_moves_values_is_not_cut_off() -> None:
    nodes = [node("Conv", "images w", "found"), node("Transpose", "found", "turned", perm=[0, 2, 3, 1])]
    graph = graph_of(
        nodes,
        inputs={"images": ["batch", *IMAGE_SHAPE]},
        outputs={"turned": ["batch", *IMAGE_SHAPE[1:], 2]},
        constants={"w": np.ones((2, 3, 1, 1), np.float32) / 3},
    )
    assert divide(graph) is None


def test_a_head_that_only_decodes_computes_in_float32() -> None:
    parts = divide(detector())
    assert parts is not None
    made: list[tuple[str, Precision]] = []

    def make(graph: OnnxGraph, precision: Precision) -> EnginePart:
        made.append((graph.name, precision))
        return OnnxRuntimePart(graph)

    make_decoded(parts[1], Precision.BF16, make)
    assert made == [(parts[1].name, Precision.FP32)]


@pytest.mark.parametrize(("gives_results", "divided"), [(True, True), (False, False)])
def test_only_a_part_with_the_models_results_is_divided(
    gives_results: bool, divided: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the last layer of a backbone come a few operators of the network, which engines fuse with the layer."""
    pytest.importorskip("openvino")
    monkeypatch.setattr(executable, "check_precision", lambda *given, is_file=False: None)
    config = ExecutionConfig(engine=Engine.OPENVINO, precision=Precision.BF16)
    part = executable.make_executable(detector(), config, gives_results=gives_results)
    assert isinstance(part, DecodedPart) == divided
    plain = executable.make_executable(detector(), ExecutionConfig(engine=Engine.OPENVINO), gives_results=True)
    assert not isinstance(plain, DecodedPart), "fp32 needs no division"


def test_a_device_without_fp32_leaves_decoding_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as an NPU. The stand-in says that it runs in f16, and computes in float32, so results differ by rounding."""
    pytest.importorskip("openvino")
    npu = Device(capabilities=("FP16",), runs_in="f16")
    pretend_devices(monkeypatch, {"NPU": npu})
    engine, provider = parse_engine("openvino:NPU")
    config = ExecutionConfig(engine=engine, provider=provider, precision=Precision.FP16)
    part = executable.make_executable(detector(), config, gives_results=True)
    for one, other in zip(part(images(2)), OnnxRuntimePart(detector())(images(2)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))
    assert [each["INFERENCE_PRECISION_HINT"] for each in npu.compiled_with] == ["f16"]
