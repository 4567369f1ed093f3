"""Tenants whose models have one architecture and weights of their own, in a running pipeline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from brightness_models import LONG_S, BrightModel, Brightness
from proposed_rivals import Proposed
from tenant_server import SETTINGS, Running, until

from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.server import server
from split_infer_ros.server.costs.cost_table import CostTable
from split_infer_ros.server.improving import improver, search
from split_infer_ros.server.opened_model import OpenedModel
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.stacked_model import StackedModel
from split_infer_ros.split.torch_network import TorchNetwork

NAMES = ("one", "two", "three")
SPLIT_POINTS = "parts.0", "parts.1"
TENANTS = tuple(Tenant(name[0] + name[1], name) for name in NAMES)  # on, tw and th
FACTORS = dict(zip(NAMES, (0.25, 0.5, 1.0), strict=True))  # of the brightness that a model finds


def load(spec: ModelSpec, settings: object = None) -> SplitModel:
    """Returns a model that multiplies the brightness by its own factor, exactly: factors are powers of two."""
    module = Brightness(1)
    with torch.no_grad():
        module.parts[0].weight.mul_(FACTORS[spec.name])  # type: ignore[operator, union-attr]
    return SplitModel(TorchNetwork(BrightModel(spec.name).entry, module))


def know_costs(path: Path, stacked_s: float) -> None:
    """Keeps costs as if they had been measured: an image takes 10 ms, and a stack of three that many seconds."""
    models = {name: load(ModelSpec(name)) for name in NAMES}
    for split_point in SPLIT_POINTS:
        table = CostTable(Key.here("cpu"), Database(path), max_batch_size=SETTINGS.largest_batch, graphs=False)
        for name, model in models.items():
            table.add_model(name, model, split_point)
        table.set_stacks([StackedModel(models, split_point)])
        while (combination := table.next_to_measure()) is not None:
            count = sum(count for _, count in combination)
            table.add_measured(combination, [(stacked_s if table.is_stack(combination) else 0.01) * count] * 3)
        table.save_costs()


class WithRivals(Running):
    """A server whose models would all be improved."""

    def __init__(self, *arguments: Any) -> None:
        self.rivals = {name: Proposed() for name in NAMES}
        super().__init__(*arguments)

    def open_model(self, tenant: Tenant, settings: SharedSettings) -> OpenedModel:
        return replace(super().open_model(tenant, settings), rivals=self.rivals[tenant.model])


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[WithRivals]:
    monkeypatch.setattr(server, "max_threads", lambda: 1)  # all cores are the only execution mode
    database = tmp_path / "tuning.jsonl"
    know_costs(database, request.param)
    found = WithRivals(database, {name: load(ModelSpec(name)) for name in NAMES}, SETTINGS)
    assert found.set(*TENANTS) == {}
    found.pipeline.start()
    yield found
    found.pipeline.stop(LONG_S)
    found.pipeline.close()


def send_together(running: Running, *values: int) -> None:
    """Has all tenants' frames wait before the server looks."""
    with running.pipeline.held():
        for value in values:
            for tenant in TENANTS:
                running.send(tenant.name, value)


def check_results(running: Running, values: list[int]) -> None:
    assert running.errors == []
    for tenant in TENANTS:
        found = [
            (origin.header, detections.scores.item() * 255) for origin, detections in running.delivered[tenant.name]
        ]
        assert [header for header, _ in found] == [(tenant.name, value) for value in values]
        for (_, value), score in found:
            assert score == pytest.approx(FACTORS[tenant.model] * value, abs=1e-3)


@pytest.mark.parametrize("running", [0.012], indirect=True)
def test_each_tenant_gets_its_own_models_results_from_a_stack(running: Running) -> None:
    assert list(running.pipeline.view.stacks) == ["one + two + three"]
    values = list(range(8, 208, 8))
    for value in values:
        send_together(running, value)
        running.settled()
    check_results(running, values)
    reports = [running.pipeline.view.report(tenant.name, time.monotonic()) for tenant in TENANTS]
    assert all(report.stacked_batches == report.fused_batches == report.batches == 25 for report in reports)
    running.send("on", 4)  # one request alone is not padded to three
    running.settled()
    assert running.pipeline.view.report("on", time.monotonic()).stacked_batches == 25


@pytest.mark.parametrize("running", [0.0299], indirect=True)
def test_stack_that_does_not_pay_is_not_even_built(running: Running) -> None:
    assert running.pipeline.view.stacks == []
    send_together(running, 8, 16)
    running.settled()
    check_results(running, [8, 16])
    assert all(running.pipeline.view.report(tenant.name, time.monotonic()).stacked_batches == 0 for tenant in TENANTS)


@pytest.mark.parametrize("running", [0.012], indirect=True)
def test_stack_follows_the_split_point_of_its_models(running: Running) -> None:
    values = list(range(8, 104, 8))
    for number, value in enumerate(values):
        running.pipeline.configure(replace(SETTINGS, split_point=SPLIT_POINTS[number % 2]))
        send_together(running, value)
        running.settled()
    check_results(running, values)
    reports = [running.pipeline.view.report(tenant.name, time.monotonic()) for tenant in TENANTS]
    assert [report.stacked_batches for report in reports] == [len(values)] * 3


@pytest.mark.parametrize("running", [0.012], indirect=True)
def test_stack_goes_with_the_first_of_its_models(running: Running) -> None:
    send_together(running, 8)
    assert running.set(*TENANTS[1:]) == {}
    until(lambda: not running.pipeline.view.leaving)
    assert list(running.pipeline.view.stacks) in ([], ["two + three"])
    running.send("tw", 40)
    running.send("th", 40)
    running.settled()
    for name, factor in (("tw", 0.5), ("th", 1.0)):
        origin, detections = running.delivered[name][-1]
        assert origin.header == (name, 40)
        assert detections.scores.item() * 255 == pytest.approx(factor * 40, abs=1e-3)
    assert running.errors == []


@pytest.mark.parametrize("running", [0.012], indirect=True)
def test_models_of_a_stack_keep_their_engine(running: WithRivals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MIN_BATCHES", 2)
    monkeypatch.setattr(improver, "RETRY_S", 0.001)
    for value in range(8, 208, 8):
        send_together(running, value)
        running.settled()
    assert not any(rivals.asked for rivals in running.rivals.values())
    assert running.set(TENANTS[0]) == {}
    until(lambda: running.rivals[NAMES[0]].asked > 0)


@pytest.mark.parametrize("running", [0.012], indirect=True)
def test_network_that_fails_costs_its_frames_and_no_more(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(stack: StackedModel, images: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(StackedModel, "join", fail)
        send_together(running, 8)
        until(lambda: all(running.counts(tenant.name).dropped for tenant in TENANTS))
    assert {reason for _, reason in running.errors} == {"no memory"}
    running.errors.clear()
    send_together(running, 16)
    running.settled()
    check_results(running, [16])
