"""Fixtures: stages, pipelines and tenants that run, on hand-made models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
from brightness_models import LONG_S, BrightModel
from tenant_server import SETTINGS, Running, Serve
from two_stages import Stages, Start

from split_infer_ros.server.improving.rivals import Rivals
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.split.model import SplitModel


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts both stages with given settings, and closes them after the test."""
    running: list[Stages] = []

    def make(
        lease_s: float = LONG_S, rivals: Rivals | None = None, model: SplitModel | None = None, **settings: object
    ) -> Stages:
        defaults = StageSettings(batch_timeout_s=0.001)
        running.append(Stages(replace(defaults, **settings), lease_s, rivals, model))  # type: ignore[arg-type]
        return running[-1]

    yield make
    for stages in running:
        stages.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    running: list[Running] = []

    def make(*tenants: Tenant, settings: SharedSettings = SETTINGS, **models: BrightModel) -> Running:
        running.append(Running(tmp_path / "tuning.jsonl", models, settings))
        assert running[-1].set(*tenants) == {}
        running[-1].pipeline.start()
        running[-1].measured()
        return running[-1]

    yield make
    for found in running:
        found.deliver_gate.set()
        for model in found.models.values():
            assert isinstance(model, BrightModel)
            model.gate.set()
        found.pipeline.stop(LONG_S)
        found.check()
        found.pipeline.close()
