from __future__ import annotations

import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from split_infer_ros.telemetry import checkup
from split_infer_ros.telemetry.checkup import (
    Finding,
    Level,
    check_gpu,
    check_limits,
    check_machine,
    check_sensors,
    check_shared_memory,
    check_torch,
    format_findings,
)
from split_infer_ros.telemetry.sensors import Sensor, Sensors, SensorUnit


def test_each_finding_has_a_line_and_a_conclusion_follows() -> None:
    fine, poor = Finding(Level.OK, "torch", "2.11"), Finding(Level.NOTE, "GPU", "none", "buy one.")
    text = format_findings([fine, poor])
    assert "ok        torch: 2.11\n" in text
    assert "-> buy one." in text
    assert text.endswith("The pipeline can run.")
    assert format_findings([fine, Finding(Level.PROBLEM, "ROS 2", "none")]).endswith("1 problem to be solved first.")


def test_this_machine_passes_its_check(tmp_path: Path) -> None:
    findings = check_machine(tmp_path)
    assert {"Machine", "torch", "torchvision", "Open files", "Locked memory"} <= {finding.what for finding in findings}
    assert all(finding.advice for finding in findings if finding.level == Level.PROBLEM)


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (ModuleNotFoundError("No module named 'torch'"), Level.NOTE),
        (ImportError("libcudart.so.12: no such file"), Level.PROBLEM),
    ],
)
def test_a_torch_that_cannot_be_imported_has_advice(error: ImportError, level: Level) -> None:
    (finding,) = check_torch(error, ImportError())
    assert finding.level == level
    assert str(error) in finding.found
    assert "pip install" in finding.advice


def test_a_torchvision_that_does_not_fit_is_a_problem() -> None:
    torch = SimpleNamespace(__version__="2.11", version=SimpleNamespace(cuda=None))
    assert [finding.level for finding in check_torch(torch, ImportError("nms does not exist"))] == [
        Level.OK,
        Level.PROBLEM,
    ]


def test_an_engine_that_is_missing_is_a_note_with_advice() -> None:
    """Engines are optional: without one the pipeline runs, so nothing is a problem."""
    there = SimpleNamespace(__version__="1.2.3")
    findings = checkup.check_engines(there, ImportError("No module named 'onnxruntime'"), there)
    assert [(finding.what, finding.level) for finding in findings] == [
        ("onnx", Level.OK),
        ("onnxruntime", Level.NOTE),
        ("openvino", Level.OK),
    ]
    assert findings[0].found == "1.2.3"
    assert "engine onnxruntime cannot be used" in findings[1].found
    assert "pip install" in findings[1].advice


def test_a_broken_module_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    found = checkup.try_import("broken_module")
    assert isinstance(found, ImportError)
    assert "nms does not exist" in str(found)


@pytest.fixture
def torch() -> SimpleNamespace:
    facts = SimpleNamespace(name="Orin", total_memory=2**33, major=8, minor=7, is_integrated=1)
    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1, get_device_properties=lambda index: facts)
    return SimpleNamespace(cuda=cuda)


def test_a_gpus_memory_attributes_are_listed(torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(name: str, index: int) -> tuple[int, int]:
        return (801, 0) if "Pageable" in name else (0, int("Concurrent" not in name))

    names = SimpleNamespace(**{name: name for name, _ in checkup.GPU_ATTRIBUTES})
    runtime = SimpleNamespace(
        cudaDeviceGetAttribute=ask, cudaDeviceAttr=names, cudaError_t=SimpleNamespace(cudaSuccess=0)
    )
    monkeypatch.setattr(checkup, "try_import", lambda name: runtime)
    (finding,) = check_gpu(torch)
    assert finding.level == Level.OK
    for words in ("Orin, 8.0 GiB", "managed memory: yes", "concurrent managed access: no", "access: not told"):
        assert words in finding.found


def test_without_the_binding_torch_describes_the_gpu(torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "try_import", ImportError)
    (finding,) = check_gpu(torch)
    assert finding.level == Level.NOTE
    assert "integrated: yes" in finding.found
    assert "cuda-bindings" in finding.advice


def test_shared_memory_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_shared_memory(tmp_path / "nowhere").level == Level.NOTE
    monkeypatch.setattr(checkup, "SHARED_MEMORY_BYTES", 0)
    assert check_shared_memory(tmp_path).level == Level.OK
    monkeypatch.setattr(checkup, "SHARED_MEMORY_BYTES", 2**62)
    finding = check_shared_memory(tmp_path)
    assert finding.level == Level.NOTE
    assert "--shm-size" in finding.advice


def test_low_limits_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = tmp_path / "rmem_max"
    buffers.write_text("212992\n")
    limits = {resource.RLIMIT_NOFILE: 256, resource.RLIMIT_MEMLOCK: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], limits[kind]))
    files, locked, sockets = check_limits(buffers)
    assert (files.level, locked.level, sockets.level) == (Level.NOTE, Level.OK, Level.NOTE)
    assert "ulimit -n" in files.advice
    assert "without limit" in locked.found
    assert "rmem_max" in sockets.advice
    buffers.write_text("33554432\n")
    limits[resource.RLIMIT_NOFILE] = resource.RLIM_INFINITY
    assert [finding.level for finding in check_limits(buffers)] == [Level.OK, Level.OK, Level.OK]


def test_sensors_that_answer_and_those_that_do_not_are_told() -> None:
    def refuse() -> float:
        raise PermissionError(13, "Permission denied", "/sys/energy_uj")

    answers, silent = Sensor("GPU 0", SensorUnit.CELSIUS, lambda: 41.0), Sensor("psys", SensorUnit.JOULE, refuse)
    fine, poor = check_sensors(Sensors([answers, silent]))
    assert (fine.level, fine.found) == (Level.OK, "GPU 0 41.0 C")
    assert (poor.level, poor.advice) == (Level.NOTE, "they count neither for the energy nor for max_temperature_c.")
    assert poor.found == "psys (J): this user may not read /sys/energy_uj; as root: chmod o+r /sys/energy_uj"
    (none,) = check_sensors(Sensors([]))
    assert none.level is Level.NOTE
