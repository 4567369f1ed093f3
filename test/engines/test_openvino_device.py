"""``openvino:DEVICE`` with the real CPU, and with devices that a stand-in lists beside it."""

from __future__ import annotations

import pytest
import torch
from comparisons import rounding
from openvino_devices import Device, pretend_devices
from small_graphs import ROUNDING, images, in_torch, small_graph

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.engines.engine import Engine, can_run_on, find_provider, parse_engine
from split_infer_ros.engines.executable import make_executable
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.openvino_part import MAX_STATIC
from split_infer_ros.engines.precision import Precision
from split_infer_ros.engines.precision_checks import check_precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.split.model_engines import ENGINES

pytest.importorskip("onnx")
pytest.importorskip("openvino")

CPU = torch.device("cpu")


def config_for(text: str, precision: Precision = Precision.FP32) -> ExecutionConfig:
    engine, provider = parse_engine(text)
    return ExecutionConfig(engine=engine, provider=provider, precision=precision)


def assert_runs(config: ExecutionConfig, count: int = 2) -> None:
    part = make_executable(small_graph(), config)
    with torch.inference_mode():
        for found, expected in zip(part(images(count)), in_torch(images(count)), strict=True):
            # float32 on the CPU in both; engines sum in another order
            assert rounding(found, expected) <= ROUNDING


def test_the_cpu_may_be_named() -> None:
    assert config_for("openvino:CPU") == config_for("openvino")
    assert_runs(config_for("openvino:CPU"))


def test_an_absent_device_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        make_executable(small_graph(), config_for("openvino:ABACUS"))
    said = str(refusal.value)
    assert said.startswith("engine openvino:ABACUS is not possible here: the installed OpenVINO has the devices ")
    assert "CPU" in said.rpartition("devices ")[2]
    assert not can_run_on("openvino:ABACUS", CPU)


@pytest.mark.parametrize("text", ["openvino:AUTO", "openvino:HETERO:GPU,CPU", "openvino:CUDA"])
def test_what_is_no_listed_device_is_refused(text: str) -> None:
    """OpenVINO's own choices among devices hide which one computes, and in which precision."""
    with pytest.raises(ConfigurationError, match="is not possible here: the installed OpenVINO has the devices"):
        make_executable(small_graph(), config_for(text))


def test_a_listed_device_runs_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = {"GPU.0": Device(), "GPU.1": Device(), "NPU": Device()}
    pretend_devices(monkeypatch, devices)
    assert_runs(config_for("openvino:gpu.1"))
    assert [len(device.compiled_with) for device in devices.values()] == [0, 1, 0]
    assert find_provider(Engine.OPENVINO, "gpu") == "GPU"  # the first of them, as OpenVINO reads it


def test_a_device_gets_no_property_that_it_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device()
    pretend_devices(monkeypatch, {"GPU": gpu})
    assert_runs(config_for("openvino:GPU"))
    (properties,) = gpu.compiled_with
    assert not set(properties) & set(gpu.lacks)
    assert properties["PERFORMANCE_HINT"] == "LATENCY"


def test_the_precision_is_always_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU computes in fp16 by default. Even one that does not list the property is asked, and may refuse."""
    gpu = Device(lacks=())
    pretend_devices(monkeypatch, {"GPU": gpu})
    for precision in (Precision.FP32, Precision.FP16):
        make_executable(small_graph(), config_for("openvino:GPU", precision))(images(1))
    assert [each["INFERENCE_PRECISION_HINT"] for each in gpu.compiled_with] == ["f32", "f16"]
    assert {each["EXECUTION_MODE_HINT"] for each in gpu.compiled_with} == {"ACCURACY"}
    silent = Device(lacks=("INFERENCE_PRECISION_HINT",))
    pretend_devices(monkeypatch, {"NPU": silent})
    with pytest.raises(ConfigurationError, match="Unsupported property INFERENCE_PRECISION_HINT"):
        make_executable(small_graph(), config_for("openvino:NPU"))(images(1))


def test_a_device_that_computes_in_another_precision_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_devices(monkeypatch, {"NPU": Device(runs_in="f16")})
    sentence = r"^OpenVINO cannot run small in f32: on its device NPU it runs in f16\.$"
    with pytest.raises(ConfigurationError, match=sentence):
        make_executable(small_graph(), config_for("openvino:NPU"))(images(1))


def test_precisions_are_those_that_the_device_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_devices(monkeypatch, {"NPU": Device(capabilities=("FP16", "INT8"))})
    check_precision(Precision.FP16, Engine.OPENVINO, "NPU")
    sentence = r"^engine openvino:NPU computes a network in fp16 as its device says, not in fp32\.$"
    with pytest.raises(ConfigurationError, match=sentence):
        check_precision(Precision.FP32, Engine.OPENVINO, "NPU")
    with pytest.raises(ConfigurationError, match=r"in fp32 or fp16 or bf16, not in int8\.$"):
        check_precision(Precision.INT8, Engine.OPENVINO, "NPU")


def test_each_batch_size_is_compiled_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device may not compile a model for any batch size."""
    gpu = Device()
    pretend_devices(monkeypatch, {"GPU": gpu})
    part = make_executable(small_graph(), config_for("openvino:GPU"))
    for count in range(1, MAX_STATIC + 3):
        part(images(count))
    assert len(gpu.compiled_with) == MAX_STATIC + 2


def test_auto_tries_no_device() -> None:
    assert not [name for name in ENGINES if name.startswith("openvino:")]


def test_records_name_the_device() -> None:
    config = config_for("openvino:gpu", Precision.FP16)
    assert config.as_json()["engine"] == "openvino:GPU"
    assert ExecutionConfig.from_json(config.as_json()) == config
    assert config.boundary_dtype == FLOAT32  # the device converts values itself
