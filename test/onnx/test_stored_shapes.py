from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnx")

from onnx_files import network

from split_infer_ros.onnx import stored_shapes as module
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.shapes import infer_shapes
from split_infer_ros.onnx.stored_shapes import stored_shapes

IMAGE = (3, 32, 32)


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnnxGraph:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return OnnxGraph("small", network(21, 7))


@pytest.fixture
def inferences(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gets the name of each graph whose shapes are inferred."""
    found: list[str] = []

    def infer(graph: OnnxGraph, image_shape: tuple[int, ...]) -> object:
        found.append(graph.name)
        return infer_shapes(graph, image_shape)

    monkeypatch.setattr(module, "infer_shapes", infer)
    return found


def kept(folder: Path) -> Path:
    (path,) = folder.rglob("shapes/*.json")
    return path


def test_shapes_are_inferred_once(graph: OnnxGraph, inferences: list[str]) -> None:
    first = stored_shapes(graph, IMAGE)
    assert first == dict(infer_shapes(graph, IMAGE)) != {}
    assert stored_shapes(graph, IMAGE) == first
    assert inferences == ["small"]


def test_another_size_or_graph_is_inferred_anew(graph: OnnxGraph, inferences: list[str]) -> None:
    stored_shapes(graph, IMAGE)
    stored_shapes(graph, (3, 64, 64))
    stored_shapes(OnnxGraph("other", network(21, 8)), IMAGE)
    assert inferences == ["small", "small", "other"]


@pytest.mark.parametrize("content", [b"", b"{}", b"0" * 64 + b"\n{}", None])
def test_a_damaged_file_is_made_again(
    graph: OnnxGraph, inferences: list[str], tmp_path: Path, content: bytes | None
) -> None:
    first = stored_shapes(graph, IMAGE)
    path = kept(tmp_path)
    path.write_bytes(path.read_bytes()[:-1] if content is None else content)
    assert stored_shapes(graph, IMAGE) == first
    assert stored_shapes(graph, IMAGE) == first
    assert inferences == ["small"] * 2


def test_a_folder_that_cannot_be_written_is_said(
    graph: OnnxGraph, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "split_infer_ros").write_text("a file where the folder should be")
    assert stored_shapes(graph, IMAGE)
    assert "shapes are inferred again at each start" in caplog.text
