"""The process that inspects files starts early if arguments name a file that was not inspected, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.sandbox import early_inspector
from split_infer_ros.split.sandbox.early_inspector import start_early, take_process, was_inspected
from split_infer_ros.split.sandbox.inspection import inspect_files
from split_infer_ros.split.sandbox.inspection_limits import InspectionLimits
from split_infer_ros.split.sandbox.inspector_process import Inspector


class Process:
    """A stand-in for the process."""

    is_running = True

    def __init__(self) -> None:
        self.ended = False

    def end(self) -> str:
        self.ended = True
        return "SIGKILL"


class Passed(Inspector):
    """An inspector that lets every file pass."""

    def ask(self, spec: ModelSpec, limits: InspectionLimits) -> dict[str, Any]:
        return {"files": [], "reading": {}}


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Process]]:
    """The processes that were started, with an empty cache."""
    found: list[Process] = []

    def start() -> Process:
        found.append(Process())
        return found[-1]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(early_inspector, "start_process", start)
    yield found
    take_process()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file that is named like a model."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"content")
    return path


@pytest.mark.parametrize("text", ["{}", "model:={}", "tenant.front.model:='{}'"])
def test_an_argument_names_a_new_file(started: list[Process], model: Path, text: str) -> None:
    start_early(["--ros-args", "-p", text.format(model)])
    assert len(started) == 1
    assert take_process() is started[0]  # type: ignore[comparison-overlap]
    assert take_process() is started[1], "a process has one owner"  # type: ignore[comparison-overlap]


def test_a_file_of_parameters_names_a_new_file(started: list[Process], model: Path, tmp_path: Path) -> None:
    parameters = tmp_path / "parameters.yaml"
    parameters.write_text(f"/**:\n  ros__parameters:\n    model: {model}\n    engine: openvino\n")
    start_early(["--ros-args", "--params-file", str(parameters)])
    assert len(started) == 1


def test_nothing_starts_without_a_new_file(started: list[Process], model: Path, tmp_path: Path) -> None:
    inspect_files(ModelSpec(str(model)), Passed())
    assert was_inspected(model)
    for arguments in (
        ["shapes"],
        [f"model:={model}"],
        [f"model:={model}.zip"],
        [f"model:={tmp_path / 'none.onnx'}"],
        ["--params-file", str(tmp_path / "none.yaml")],
        ["--params-file"],
    ):
        start_early(arguments)
    assert not started
    model.write_bytes(b"another content")
    start_early([f"model:={model}"])
    assert len(started) == 1


@pytest.mark.parametrize("is_running", [True, False])
def test_a_process_that_may_end_is_not_taken(
    started: list[Process], model: Path, monkeypatch: pytest.MonkeyPatch, is_running: bool
) -> None:
    start_early([str(model)])
    started[0].is_running = is_running
    if is_running:
        monkeypatch.setattr(early_inspector, "MAX_AGE_S", 0.0)
    assert take_process() is started[1]  # type: ignore[comparison-overlap]
    assert started[0].ended
