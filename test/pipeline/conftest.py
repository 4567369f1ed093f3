from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from streamed_run import Run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """The small detector in a pipeline, with a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = Run()
    with found.pipeline:
        yield found
