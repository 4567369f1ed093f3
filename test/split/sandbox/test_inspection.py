"""Files that would crash, fill or hang the process that reads them are refused. Good ones are inspected once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx_files import network, ultralytics
from safetensors.torch import save_file

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError, WeightsError
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.runtime.cached_json import read_json
from split_infer_ros.runtime.checked_files import header_of
from split_infer_ros.split import load
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.sandbox import inspection_limits
from split_infer_ros.split.sandbox.inspection import Inspected, inspect_files, inspected_paths
from split_infer_ros.split.sandbox.inspection_limits import InspectionLimits
from split_infer_ros.split.sandbox.inspector_process import Inspector


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what was inspected, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "split_infer_ros" / "inspected"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Weights of the small detector, as torch saves them."""
    path = tmp_path / "shapes.pth"
    torch.save(find_model("shapes").build().state_dict(), path)  # type: ignore[union-attr]
    return path


class Answers(Inspector):
    """An inspector without a process, which gives one answer."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__()
        self.answer, self.asked = {"reading": {}, **answer}, 0

    def ask(self, spec: ModelSpec, limits: InspectionLimits) -> dict[str, Any]:
        self.asked += 1
        return self.answer


@pytest.fixture(scope="module")
def inspector() -> Iterator[Inspector]:
    """One process for all tests here."""
    with Inspector() as process:
        yield process


def test_a_file_is_inspected_once_for_each_content_and_engine(state: Path, cache: Path) -> None:
    good, spec = Answers({"files": []}), ModelSpec("shapes", str(state))
    for _ in range(2):
        inspect_files(spec, good)
    inspect_files(replace(spec, device="cpu"), good)  # decides nothing about how it is read
    assert (good.asked, len(list(cache.iterdir()))) == (1, 1)
    inspect_files(replace(spec, execution_config=ExecutionConfig(engine=Engine.OPENVINO)), good)
    assert good.asked == 2
    state.rename(state.with_name("moved.pth"))
    inspect_files(ModelSpec("shapes", str(state.with_name("moved.pth"))), good)
    assert good.asked == 2, "the same content"
    state.with_name("moved.pth").write_bytes(b"another content")
    inspect_files(ModelSpec("shapes", str(state.with_name("moved.pth"))), good)
    assert good.asked == 3


def test_files_beside_the_model_count(tmp_path: Path) -> None:
    path, beside = tmp_path / "m.onnx", tmp_path / "w.bin"
    for file in (path, beside):
        file.write_bytes(b"first")
    good = Answers({"files": [str(beside)]})
    for _ in range(2):
        inspect_files(ModelSpec(str(path)), good)
    assert good.asked == 1
    beside.write_bytes(b"second, as large as it likes")
    inspect_files(ModelSpec(str(path)), good)
    assert good.asked == 2
    beside.unlink()
    good.answer = {"late": True}
    with pytest.raises(ConfigurationError):
        inspect_files(ModelSpec(str(path)), good)


@pytest.mark.parametrize(
    ("answer", "kind", "sentence"),
    [
        ({"died": "SIGSEGV"}, ConfigurationError, r"ended the process that inspects it \(SIGSEGV\): it is damaged"),
        ({"late": True}, ConfigurationError, r"was not read within \d+ s .*SPLIT_INFER_ROS_INSPECTION_S can allow"),
        ({"error": "No.", "kind": "WeightsError", "is_shortage": False}, WeightsError, r"^No\.$"),
        (
            {"error": "bad_alloc.", "kind": "ConfigurationError", "is_shortage": True},
            ConfigurationError,
            r"^bad_alloc\. Inspecting it may take [\d,]+ MB; .*SPLIT_INFER_ROS_INSPECTION_MB can allow more",
        ),
    ],
)
def test_what_an_inspection_finds_is_said_and_not_remembered(
    state: Path, cache: Path, answer: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        inspect_files(ModelSpec("shapes", str(state)), Answers(answer))
    assert not cache.exists()


@pytest.mark.parametrize("content", [b"another", None])
def test_a_file_that_changes_during_its_inspection_is_not_used(state: Path, content: bytes | None) -> None:
    class Exporting(Answers):
        """While it inspects a file, the file is exported anew or removed."""

        def ask(self, spec: ModelSpec, limits: InspectionLimits) -> dict[str, Any]:
            state.unlink()
            if content is not None:
                state.write_bytes(content)
            return super().ask(spec, limits)

    spec = ModelSpec("shapes", str(state))
    with pytest.raises(ConfigurationError, match="has changed while it was inspected; load the model again"):
        inspect_files(spec, Exporting({"files": []}))


def test_only_files_that_can_do_harm_are_inspected(state: Path, tmp_path: Path) -> None:
    model, program, tensors = tmp_path / "m.onnx", tmp_path / "p.pt2", tmp_path / "w.safetensors"
    for path in (model, program):
        path.touch()
    save_file({"w": torch.zeros(1)}, tensors)
    assert inspected_paths(ModelSpec("shapes")) == []
    assert inspected_paths(ModelSpec("shapes", str(tensors))) == []
    assert inspected_paths(ModelSpec("shapes", str(tmp_path / "none.pth"))) == []
    assert inspected_paths(ModelSpec("shapes", str(state))) == [state]
    assert inspected_paths(ModelSpec(str(model))) == [model]
    assert inspected_paths(ModelSpec(str(program))) == [], "it is refused unread"
    assert inspected_paths(ModelSpec(str(program), str(state), allow_user_code=True)) == [program, state]


def test_limits_follow_the_file_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection_limits, "host_bytes_free", lambda: 100 << 30)
    small, large = InspectionLimits.of(0), InspectionLimits.of(10**9)
    assert (small.memory_bytes, small.seconds) == (2 << 30, 120)
    assert (large.memory_bytes, large.seconds) == ((2 << 30) + 16 * 10**9, 220)
    monkeypatch.setattr(inspection_limits, "host_bytes_free", lambda: 10**9)
    assert InspectionLimits.of(0).memory_bytes == 900_000_000
    monkeypatch.setenv(inspection_limits.MEMORY_VARIABLE, "500")
    monkeypatch.setenv(inspection_limits.TIME_VARIABLE, "2.5")
    assert InspectionLimits.of(10**9) == InspectionLimits(500_000_000, 2.5)
    for text in ("-1", "much", "nan"):
        monkeypatch.setenv(inspection_limits.TIME_VARIABLE, text)
        with pytest.raises(ConfigurationError, match=f"INSPECTION_S is '{text}'; it takes a positive number"):
            InspectionLimits.of(0)


def test_a_file_larger_than_the_memory_is_not_read(state: Path) -> None:
    os.truncate(state, 2**43)
    with pytest.raises(ConfigurationError, match=r"shapes\.pth cannot be read: 8,796,093,022,208 bytes were asked for"):
        inspect_files(ModelSpec("shapes", str(state)), Answers({}))


def as_written(value: object) -> bytes:
    """A file of the cache with a value."""
    content = json.dumps(value).encode()
    return header_of(content) + content


def test_damaged_memory_of_inspections_costs_one_inspection(state: Path, cache: Path) -> None:
    good, spec = Answers({"files": []}), ModelSpec("shapes", str(state))
    inspect_files(spec, good)
    (known,) = cache.iterdir()
    values = ([], {"beside": 3}, {"beside": {"gone": "0"}})
    assert read_json(known) == {"beside": {}, "reading": {}}
    for damaged in (b"", known.read_bytes()[:-1], *map(as_written, values)):
        known.write_bytes(damaged)
        asked = good.asked
        inspect_files(spec, good)
        assert good.asked == asked + 1


def test_weights_are_loaded_in_a_process_of_their_own_first(inspector: Inspector, state: Path) -> None:
    spec = ModelSpec("shapes", str(state))
    found = inspector.ask(spec, InspectionLimits(2 << 30, 60))
    assert found["files"] == []
    assert found["peak_bytes"] > 0
    late = inspector.ask(spec, InspectionLimits(2 << 30, 1e-3))
    assert late["late"] is True
    state.write_bytes(state.read_bytes()[:1000])
    refused = inspector.ask(spec, InspectionLimits(2 << 30, 60))
    assert (refused["kind"], refused["is_shortage"]) == ("WeightsError", False)
    assert "cannot be read as weights" in refused["error"]


def test_memory_of_an_inspection_is_bounded(inspector: Inspector, tmp_path: Path) -> None:
    path = tmp_path / "large.pth"
    torch.save({"w": torch.zeros(100 << 20, dtype=torch.uint8)}, path)
    refused = inspector.ask(ModelSpec("shapes", str(path)), InspectionLimits(30 << 20, 60))
    assert refused["is_shortage"] is True
    assert "holds another model's weights" in inspector.ask(
        ModelSpec("shapes", str(path)), InspectionLimits(300 << 20, 60)
    )["error"]  # fmt: skip


def test_a_killed_process_is_made_again(inspector: Inspector, state: Path) -> None:
    spec, limits = ModelSpec("shapes", str(state)), InspectionLimits(2 << 30, 60)
    inspector.ask(spec, limits)
    assert inspector.pid is not None
    os.kill(inspector.pid, signal.SIGKILL)
    answer = inspector.ask(spec, limits)
    assert "files" in answer or answer["died"] == "SIGKILL"
    assert inspector.ask(spec, limits)["files"] == []


def test_an_onnx_file_is_inspected_once_for_each_engine_that_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked = tmp_path / "m.onnx", list[Engine]()
    onnx.save(network(84, 21, metadata=ultralytics()), path)

    def note(spec: ModelSpec) -> Inspected:
        asked.append(spec.execution_config.engine)
        return inspect_files(spec)

    monkeypatch.setattr(load, "inspect_files", note)
    openvino, plain = (
        ModelSpec(str(path), device="cpu", execution_config=ExecutionConfig(engine=engine))
        for engine in (Engine.OPENVINO, Engine.TORCH)
    )
    models = [load_model(spec) for spec in (openvino, openvino, plain, plain)]
    assert asked == [Engine.OPENVINO, Engine.ONNXRUNTIME]
    assert models[0] is models[1]
    assert models[2] is models[3]


def test_user_weights_are_inspected_when_a_model_is_loaded(state: Path, cache: Path) -> None:
    model = load_model(ModelSpec("shapes", str(state), "cpu"))
    assert len(list(cache.iterdir())) == 1
    assert model.entry.name == "shapes"
