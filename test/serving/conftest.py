"""A pipeline with hand-made models in the place of the catalogue's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bright import LONG_S, BrightModel
from running import SETTINGS, Running, Start

from split_infer_ros.errors import UnknownModelError
from split_infer_ros.pipeline.settings import WeightsSettings
from split_infer_ros.serving import tenant_registry
from split_infer_ros.serving.shared_settings import SharedSettings
from split_infer_ros.serving.tenant import Tenant
from split_infer_ros.split.model_spec import ModelSpec


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    running: list[Running] = []

    def make(*tenants: Tenant, settings: SharedSettings = SETTINGS, **models: BrightModel) -> Running:
        def load(spec: ModelSpec, weights: WeightsSettings) -> BrightModel:
            if spec.name == "broken":
                raise ValueError("what a factory raises")
            if spec.name not in models:
                raise UnknownModelError(f"There is no model '{spec.name}'.")
            return models[spec.name]

        monkeypatch.setattr(tenant_registry, "load_streamable", load)
        running.append(Running(tmp_path / "tuning.jsonl", models, settings))
        assert running[-1].set(*tenants) == {}
        running[-1].pipeline.start()
        return running[-1]

    yield make
    for found in running:
        found.deliver_gate.set()
        for model in found.models.values():
            model.gate.set()
        found.pipeline.stop(LONG_S)
        found.check()
        found.pipeline.close()
