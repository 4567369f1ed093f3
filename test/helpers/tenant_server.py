"""A server of tenants for tests. It collects its results and errors."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from brightness_models import BAD, LONG_S, frame

from split_infer_ros.errors import ConfigurationError, UnknownModelError
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.server import server, warm_up
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.ledger import Ledger, LedgerCounts
from split_infer_ros.server.opened_model import OpenedModel
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.lane_rule import LaneRule
from split_infer_ros.server.server import Server
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.split.model import SplitModel

A, B, C = Tenant("a", "one"), Tenant("b", "one"), Tenant("c", "two")
SETTINGS = SharedSettings(device="cpu", max_waiting=20)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.001)


class Running:
    """A server that stores its results and errors.

    Args:
        database: the file of the database of measurements.
        models: the models of tenants, by name.
        settings: the settings that all tenants share.
        say: called with a model's key and a line about its split point.

    Attributes:
        errors: the tenant's name and the text of each error.
        delivered: origin and detections of each result, by tenant.
        ledgers: the ledgers that each tenant has had.
        deliver_gate: while it is not set, results wait.
        pipeline: the server.
    """

    def __init__(
        self,
        database: Path,
        models: Mapping[str, SplitModel],
        settings: SharedSettings,
        say: Callable[[str, str], object] = lambda key, line: None,
    ) -> None:
        self.models = models
        self.errors: list[tuple[str, str]] = []
        self.delivered: dict[str, list[tuple[Origin, Detections]]] = defaultdict(list)
        self.ledgers: dict[str, list[Ledger]] = defaultdict(list)
        self.deliver_gate = threading.Event()
        self.deliver_gate.set()
        self.pipeline = Server(
            settings,
            Limits(),
            self.deliver,
            self.note,
            device=torch.device(settings.device),
            open_model=lambda tenant, settings: self.open_model(tenant, settings),
            database=Database(database),
            say=say,
        )

    def open_model(self, tenant: Tenant, settings: SharedSettings) -> OpenedModel:
        if tenant.model == "broken":
            raise ValueError("what a factory raises")
        if tenant.model not in self.models:
            raise UnknownModelError(f"There is no model '{tenant.model}'.")
        model = self.models[tenant.model]
        return OpenedModel(model, (model.network.note,) if model.network.note else ())

    def note(self, name: str, error: Exception) -> None:
        self.errors.append((name, str(error)))

    def deliver(self, tenant: str, origin: Origin, detections: Detections, labels: Sequence[str]) -> None:
        assert self.deliver_gate.wait(LONG_S)
        assert len(labels) == 1  # each model here has one label
        if origin.header[1] == BAD - 1:
            raise RuntimeError("nobody hears it")
        self.delivered[tenant].append((origin, detections))

    def set(self, *tenants: Tenant) -> dict[str, ConfigurationError]:
        refused = self.pipeline.set_tenants(tenants)
        for name in self.pipeline.view.tenants:
            ledger = self.pipeline.view.ledger(name)
            if ledger not in self.ledgers[name]:
                self.ledgers[name].append(ledger)
        return refused

    def send(self, tenant: str, *values: int) -> None:
        for value in values:
            self.pipeline.intake(tenant).submit(*frame(value, tenant), time.monotonic())

    def measured(self) -> None:
        until(lambda: self.pipeline.view.is_measured)

    def settled(self) -> None:
        until(lambda: not any(self.counts(name).in_flight for name in self.pipeline.view.tenants))

    def counts(self, tenant: str) -> LedgerCounts:
        return self.pipeline.view.report(tenant, time.monotonic()).counts

    def check(self) -> None:
        """Asserts that all frames are accounted for, and that each result belongs to a frame of its own tenant."""
        for name, ledgers in self.ledgers.items():
            published = 0
            for ledger in ledgers:
                counts = ledger.counts()
                assert counts.balanced
                published += counts.published
            assert published == len(self.delivered[name])
            for origin, detections in self.delivered[name]:
                assert origin.header[0] == origin.source == name, "another tenant's frame"
                assert round(detections.scores.item() * 255) == origin.header[1], "another frame's features"


def use_lanes(monkeypatch: pytest.MonkeyPatch, lanes: bool) -> None:
    """Makes all models run on two lanes if ``lanes``, else on all cores, whatever their measured costs are."""
    for module in (server, warm_up):
        monkeypatch.setattr(module, "max_threads", lambda: 2)
    monkeypatch.setattr(LaneRule, "wants_lanes", lambda rule, now, is_idle: lanes)
    monkeypatch.setattr(ExecutionModes, "lanes_serve_more", lanes)
    monkeypatch.setattr(ExecutionModes, "all_cores_finish_sooner", lambda modes, waiting, more_arrive: not lanes)


Serve = Callable[..., Running]
