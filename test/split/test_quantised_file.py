"""A quantised model is read again only as it was written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("onnx")

from small_graphs import small_graph

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.split.quantised_file import keep_quantised, read_quantised


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model of which nothing but its identity counts here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return SimpleNamespace(
        split_points=(), content="abc", kind="a model", entry=SimpleNamespace(name="small", image_shape=(3, 4, 4))
    )


def test_what_was_kept_is_read(network: Any) -> None:
    with pytest.raises(ConfigurationError, match="small was not quantised"):
        read_quantised(network)
    keep_quantised(network, small_graph().proto)
    assert read_quantised(network)[0].proto.graph.node == small_graph().proto.graph.node


def test_damaged_and_foreign_files_are_refused(network: Any) -> None:
    path = keep_quantised(network, small_graph().proto)
    digest = path.with_suffix(".sha256")
    for damaged in (path, digest):
        good = damaged.read_bytes()
        damaged.write_bytes(good[:-1] + b"?")
        with pytest.raises(ConfigurationError, match="is not as it was written; run `split_infer_ros quantise` again"):
            read_quantised(network)
        damaged.write_bytes(good)
    read_quantised(network)
    digest.unlink()
    with pytest.raises(ConfigurationError, match="is not as it was written"):
        read_quantised(network)
