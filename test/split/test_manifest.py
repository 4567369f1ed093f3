from __future__ import annotations

import logging
from pathlib import Path

import pytest

pytest.importorskip("onnx")

from onnx_files import network

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.model_source import model_source
from split_infer_ros.split import manifest as module
from split_infer_ros.split.manifest import Manifest

IDENTITY = "0123 4567"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "split_infer_ros" / "manifests"


def opened(identity: str = IDENTITY, name: str = "model.onnx") -> Manifest:
    """What a process has that starts now."""
    return Manifest.of(identity, name)


def never() -> object:
    raise AssertionError("this is known")


def small() -> OnnxGraph:
    return OnnxGraph("small", network(21, 7))


def test_a_fact_is_found_out_once_and_has_one_form() -> None:
    first = opened().find("sizes", lambda: {"all": (1, 2)})
    assert first == {"all": [1, 2]}, "a tuple that the next start would read as a list"
    assert opened().find("sizes", never) == first


@pytest.mark.parametrize(("identity", "name"), [("89ab", "model.onnx"), (IDENTITY, "copy.onnx")])
def test_another_content_or_place_has_facts_of_its_own(identity: str, name: str) -> None:
    opened().find("size", lambda: 1)
    assert opened(identity, name).find("size", lambda: 2) == 2


def test_without_an_inspection_nothing_is_kept(cache: Path) -> None:
    manifest = opened("")
    assert manifest.find("size", lambda: 1) == 1 == manifest.find("size", never)
    assert not cache.exists()


def test_what_may_be_otherwise_later_is_not_kept() -> None:
    manifest = opened()
    manifest.find("size", lambda: 1)
    manifest.keep_no_more()
    assert manifest.find("name", lambda: "b") == "b" == manifest.known("name")
    assert (opened().known("size"), opened().known("name")) == (1, None)


def test_what_fails_is_not_known() -> None:
    manifest = opened()
    with pytest.raises(AssertionError):
        manifest.find("size", never)
    assert manifest.find("size", lambda: 3) == 3


@pytest.mark.parametrize("content", [b"", b"{}", b"0" * 64 + b"\n{}", None])
def test_a_damaged_file_counts_as_none(cache: Path, content: bytes | None) -> None:
    opened().find("size", lambda: 1)
    (path,) = cache.iterdir()
    path.write_bytes(path.read_bytes()[:-1] if content is None else content)
    assert opened().find("size", lambda: 2) == 2
    assert opened().find("size", never) == 2


def test_two_processes_keep_what_either_finds_out() -> None:
    one, other = opened(), opened()
    assert (one.find("size", lambda: 1), other.find("name", lambda: "b")) == (1, "b")
    assert (opened().find("size", never), opened().find("name", never)) == (1, "b")


def test_a_folder_that_cannot_be_written_is_said_once(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.parent.mkdir()
    cache.write_text("a file")
    manifest = opened()
    with caplog.at_level(logging.WARNING):
        assert [manifest.find(name, lambda: 1) for name in "ab"] == [1, 1]
        assert manifest.graph("small", "whole", small, keeps_content=True).proto == small().proto
    (said,) = caplog.messages
    assert "cannot be kept, so the model is read at each start" in said


def test_a_known_graph_says_the_same_and_is_not_made() -> None:
    counted = Counted()
    first, known = opened().graph("part", "0-3", small), opened().graph("part", "0-3", counted)
    assert (known.facts, known.name) == (first.facts, "part")
    assert known.facts == small().facts
    assert repr(known) == repr(first)
    assert counted.calls == 0
    assert known.proto == small().proto == known.proto
    assert counted.calls == 1


def test_a_kept_model_needs_no_graph(cache: Path) -> None:
    opened().graph("part", "0-3", small, keeps_content=True)
    known = opened().graph("part", "0-3", Counted(limit=0), keeps_content=True)
    with model_source(known) as source:
        assert source == small().proto.SerializeToString()
    (content,) = cache.glob("*.onnx")
    content.write_bytes(content.read_bytes()[:-1])
    with model_source(opened().graph("part", "0-3", small, keeps_content=True)) as source:
        assert source == small().proto.SerializeToString(), "a damaged one is not given to an engine"
    assert not content.exists(), "the next start writes it again"


def test_a_large_model_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONTENT_BYTES", 10)
    for start in range(2):
        counted = Counted()
        graph = opened().graph("part", "0-3", counted, keeps_content=True)
        assert counted.calls == (1 if start == 0 else 0), "nor is it made at each start to see that it is large"
    assert not list(cache.glob("*.onnx"))
    assert graph.proto == small().proto


def test_another_graph_is_not_taken_for_a_known_one() -> None:
    opened().graph("part", "0-3", small)
    other = opened().graph("part", "0-3", lambda: OnnxGraph("small", network(21, 8)))
    with pytest.raises(ConfigurationError, match="part has changed since it was loaded; load the model again"):
        _ = other.proto


def test_nodes_come_from_a_kept_model() -> None:
    opened().graph("part", "0-3", small, keeps_content=True)
    assert opened().graph("part", "0-3", Counted(limit=0), keeps_content=True).proto == small().proto


class Counted:
    """Makes the small graph, and counts how often."""

    def __init__(self, limit: int = 1) -> None:
        self.calls, self._limit = 0, limit

    def __call__(self) -> OnnxGraph:
        self.calls += 1
        assert self.calls <= self._limit
        return small()
