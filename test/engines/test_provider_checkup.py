"""What ``doctor`` says of ONNX Runtime's providers and OpenVINO's devices."""

from __future__ import annotations

import pytest
from openvino_devices import Device, pretend_devices

from split_infer_ros.engines import provider_checkup
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.provider_checkup import check_providers
from split_infer_ros.telemetry.checkup import Level


def found() -> dict[str, tuple[Level, str]]:
    return {finding.what: (finding.level, finding.found) for finding in check_providers()}


def test_providers_and_devices_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = pytest.importorskip("onnxruntime")
    names = [f"{name}ExecutionProvider" for name in ("Tensorrt", "CUDA", "CPU")]
    monkeypatch.setattr(runtime, "get_available_providers", lambda: names)
    pretend_devices(monkeypatch, {"GPU.0": Device(), "GPU.1": Device()})
    assert found() == {
        "Providers of onnxruntime": (Level.OK, "Tensorrt, CUDA, CPU"),
        "Devices of openvino": (Level.OK, "CPU, GPU.0, GPU.1, GPU"),
    }


@pytest.mark.parametrize(("has_driver", "names"), [(True, ["CPU"]), (False, ["CPU"]), (True, ["CUDA", "CPU"])])
def test_a_gpu_that_onnx_files_do_not_reach_is_a_note(
    monkeypatch: pytest.MonkeyPatch, has_driver: bool, names: list[str]
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    monkeypatch.setattr(runtime, "get_available_providers", lambda: [f"{name}ExecutionProvider" for name in names])
    monkeypatch.setattr(provider_checkup, "has_nvidia_driver", lambda: has_driver)
    level, _ = found()["Providers of onnxruntime"]
    assert level is (Level.NOTE if has_driver and names == ["CPU"] else Level.OK)


def test_an_engine_that_is_not_installed_has_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "is_installed", False)
    assert found() == {}


def test_a_driver_that_fails_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    openvino = pytest.importorskip("openvino")

    def fail() -> object:
        raise RuntimeError("the driver is too old")

    monkeypatch.setattr(openvino, "Core", fail)
    level, said = found()["Devices of openvino"]
    assert level is Level.NOTE
    assert "the driver is too old" in said
