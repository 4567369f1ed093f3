"""In 16 bits, what decodes a model's results stays in float32.

Whether a processor has bf16 does not matter here. Both parts run in float32, and a test looks at the precision in
which each is made.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from decoding_graphs import detector
from openvino_devices import Device, pretend_devices
from small_graphs import images

from split_infer_ros.engines import executable
from split_infer_ros.engines.decoded_part import DecodedPart, make_decoded
from split_infer_ros.engines.engine import Engine, parse_engine
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.onnxruntime_part import OnnxRuntimePart
from split_infer_ros.engines.precision import Precision
from split_infer_ros.onnx.decoding import divide
from split_infer_ros.onnx.graph import OnnxGraph

pytestmark = pytest.mark.numeric


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
