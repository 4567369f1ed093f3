"""Processes that run an ONNX file import nothing heavy until their first detection."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import rclpy
from ros_processes import Process
from ros_support import START_S, Client, wait_until
from vision_msgs.msg import Detection2DArray

pytest.importorskip("onnx")
pytestmark = pytest.mark.timeout(4 * START_S)

from light_starts import HEAVY, WatchedModules, write_detector  # noqa: E402

SHARED = ("-p", "transport:=shared_memory")
PROCESSES = {
    "pipeline": [("pipeline",)],
    "backbone and head": [("head", *SHARED), ("backbone", *SHARED), ("camera",)],
    "tenants": [("tenants",), ("camera", "-r", "image:=one/image")],
}
DETECTIONS = {"tenants": "one/detections"}


@pytest.fixture
def client(ros_domain: int) -> Iterator[Client]:
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=ros_domain)
    client = Client(context)
    yield client
    client.close()
    rclpy.try_shutdown(context=context)


def parameters(executable: str, model: Path, engine: str) -> list[str]:
    """The ROS arguments that an executable takes for the model."""
    chosen = {
        "camera": {"width": 64, "height": 48, "rate_hz": 10.0},
        "head": {"model": model},
        "tenants": {"tenants": "[one]", "tenant.one.model": model, "engine": engine},
    }.get(executable, {"model": model, "engine": engine})
    return [word for name, value in chosen.items() for word in ("-p", f"{name}:={value}")]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WatchedModules:
    """The modules of the processes that are started from now on."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return WatchedModules(tmp_path)


def assert_lacks(watched: WatchedModules, process: Process, name: str, modules: Sequence[str] = HEAVY) -> None:
    wait_until(lambda: watched.imported(process.pid) is not None, f"the modules of {name}")
    assert watched.imported(process.pid, modules) == [], name


@contextmanager
def detecting(client: Client, name: str, engine: str, model: Path) -> Iterator[list[tuple[Process, str]]]:
    """The processes of that name, each with its executable, once they have detected something."""
    with ExitStack() as stack:
        started = [
            (
                stack.enter_context(
                    Process(executable, "--ros-args", *parameters(executable, model, engine), *arguments)
                ),
                executable,
            )
            for executable, *arguments in PROCESSES[name]
        ]
        client.subscribe(Detection2DArray, DETECTIONS.get(name, "detections")).wait_for(1, START_S)
        yield started
        for process, _ in started:
            process.send(signal.SIGTERM)  # to all, before the first is waited for


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A detector that was never inspected."""
    path = tmp_path / "mine.onnx"
    write_detector(path)
    return path


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("name", PROCESSES)
def test_nothing_heavy_is_imported_until_the_first_detection(
    client: Client, name: str, engine: str, watched: WatchedModules, model: Path
) -> None:
    """A later start also reads no model."""
    pytest.importorskip(engine)
    with detecting(client, name, engine, model) as started:
        watched.ask()
        for process, executable in started:
            assert_lacks(watched, process, executable)
    watched.begin_again()
    with detecting(client, name, engine, model) as started:
        watched.ask()
        for process, executable in started:
            assert_lacks(watched, process, executable, [*HEAVY, "onnx"])


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_the_built_in_model_starts_light_too(client: Client, engine: str, watched: WatchedModules) -> None:
    pytest.importorskip(engine)
    with Process("pipeline", "--ros-args", "-p", f"engine:={engine}") as pipeline:
        client.subscribe(Detection2DArray, "detections").wait_for(1, START_S)
        watched.ask()
        assert_lacks(watched, pipeline, "pipeline")
