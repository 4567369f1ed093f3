"""The parameter ``cache_mb`` limits the user's cache folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rclpy.context import Context
from rclpy.parameter import Parameter
from ros_pipeline import NODE_TYPES

from split_infer_ros.runtime.cache_pruning import DEFAULT_BYTES, limit_cache, write_cached


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path / "split_infer_ros" / "blobs"
    limit_cache(DEFAULT_BYTES)


@pytest.mark.parametrize("name", ["backbone", "head", "tenants"])
def test_the_limit_holds_from_the_configuration_on(context: Context, folder: Path, name: str) -> None:
    folder.mkdir(parents=True)
    old = folder / "old.blob"
    old.write_bytes(bytes(2_000_000))
    os.utime(old, (time.time() - 3600,) * 2)
    write_cached(folder / "first.blob", b"content")
    assert old.exists(), "2 GB by default"
    # The backbone and the head refuse the model, which does not matter here.
    values = {"cache_mb": 1.5} if name == "tenants" else {"cache_mb": 1.5, "model": "nonsense"}
    overrides = [Parameter(key, value=value) for key, value in values.items()]
    node = NODE_TYPES[name](context=context, use_global_arguments=False, parameter_overrides=overrides)
    try:
        node.trigger_configure()
        write_cached(folder / "second.blob", b"content")
        assert sorted(path.name for path in folder.iterdir()) == ["first.blob", "second.blob"]
    finally:
        node.close()
