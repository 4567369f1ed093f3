"""Fixtures: running pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bright import LONG_S
from stages import Stages, Start
from streamed_run import Run

from split_infer_ros.pipeline.settings import StageSettings


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """The small detector in a pipeline, with a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = Run()
    with found.pipeline:
        yield found


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts both stages with given settings, and closes them after the test."""
    running: list[Stages] = []

    def make(lease_s: float = LONG_S, **settings: object) -> Stages:
        defaults = StageSettings(batch_timeout_s=0.001)
        running.append(Stages(replace(defaults, **settings), lease_s))  # type: ignore[arg-type]
        return running[-1]

    yield make
    for stages in running:
        stages.close()
