"""The usual nodes: their arguments, and OpenVINO in fp32 or as it compiles."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.rivals import vendor_networks
from benchmarks.rivals.usual import ONNXRUNTIME, OPENVINO_AS_IT_COMPILES, OPENVINO_FP32, TORCH, command
from benchmarks.rivals.usual_openvino import AS_IT_COMPILES, FP32, compile_network, precision_of


class Core:
    """Stands for OpenVINO on a processor with AVX512_BF16, unless its default is another one."""

    def __init__(self, default: str = "bf16") -> None:
        self.default = default

    def compile_model(self, network: object, device: str, hints: dict[str, Any]) -> SimpleNamespace:
        name = hints.get("INFERENCE_PRECISION_HINT", self.default)
        return SimpleNamespace(get_property=lambda key: SimpleNamespace(to_string=lambda: name), hints=hints)


@pytest.mark.parametrize(("precision", "runs_in"), [(FP32, "fp32"), (AS_IT_COMPILES, "bf16")])
def test_only_fp32_is_asked_for(precision: str, runs_in: str) -> None:
    compiled = compile_network(Core(), object(), precision, threads=2)
    assert precision_of(compiled) == runs_in
    assert ("INFERENCE_PRECISION_HINT" in compiled.hints) is (precision == FP32)


def test_a_compiled_network_tells_its_precision() -> None:
    openvino = pytest.importorskip("openvino")
    values = openvino.opset13.parameter([1, 4], openvino.Type.f32)
    network = openvino.Model([openvino.opset13.relu(values)], [values])
    assert precision_of(compile_network(openvino.Core(), network, FP32, threads=1)) == "fp32"
    assert precision_of(compile_network(openvino.Core(), network, AS_IT_COMPILES, threads=1)) in ("fp32", "bf16")


@pytest.mark.parametrize(("rival", "expected"), [(OPENVINO_FP32, FP32), (OPENVINO_AS_IT_COMPILES, AS_IT_COMPILES)])
def test_usual_node_compiles_as_its_rival_says(rival: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rclpy")
    from benchmarks.rivals import usual_detector

    compiled: list[tuple[Path, str]] = []

    def compile_file(path: Path, precision: str) -> SimpleNamespace:
        compiled.append((path, precision))
        return SimpleNamespace(create_infer_request=lambda: None)

    monkeypatch.setattr(usual_detector, "compile_file", compile_file)
    given = [*command(rival, "yolo.onnx")[2:], "--ros-args", "-r", "__ns:=/here", "--log-level", "warn"]
    usual_detector.chosen_engine(given)()
    assert compiled == [(Path("yolo.onnx"), expected)]


@pytest.mark.parametrize("rival", [TORCH, ONNXRUNTIME])
def test_usual_node_loads_its_engine(rival: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rclpy")
    from benchmarks.rivals import usual_detector

    engine = rival.removeprefix("usual_")
    monkeypatch.setitem(usual_detector.ENGINES, engine, lambda path: (engine, path))
    assert usual_detector.chosen_engine(command(rival, "yolo.onnx")[2:])() == (engine, Path("yolo.onnx"))


def test_only_openvino_has_a_choice_of_precision(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rclpy")
    from benchmarks.rivals import usual_detector

    with pytest.raises(SystemExit):
        usual_detector.chosen_engine([*command(TORCH, "yolo.onnx")[2:], "--precision", FP32])
    assert "torch computes in fp32" in capsys.readouterr().err


@pytest.mark.parametrize("default", ["f32", "bf16"])
def test_engine_alone_runs_twice_unless_both_are_fp32(default: str, monkeypatch: pytest.MonkeyPatch) -> None:
    openvino = pytest.importorskip("openvino")
    monkeypatch.setattr(openvino, "Core", lambda: Core(default))
    converted: list[object] = []
    monkeypatch.setattr(openvino, "convert_model", lambda module, **_: converted.append(module) or module)
    monkeypatch.setattr(vendor_networks, "_onnx_runtime", lambda *_: lambda: None)
    monkeypatch.setattr(vendor_networks, "_openvino", lambda compiled, images: compiled)
    lines: list[str] = []
    module = torch.nn.ReLU()
    found = vendor_networks.vendors_of(module, torch.zeros(1, 3, 4, 4), 1, say=lines.append)
    in_fp32 = ["ONNX Runtime", "OpenVINO"]
    assert list(found) == (in_fp32 if default == "f32" else [*in_fp32, "OpenVINO, as it compiles"])
    said = "fp32 here, so OpenVINO stands for both" if default == "f32" else default
    assert lines == [f"OpenVINO, as it compiles: {said}"]
    assert len(converted) == 1
