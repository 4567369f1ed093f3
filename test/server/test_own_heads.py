"""Tenants whose heads are elsewhere: they share a model's weights, and neither batches nor troubles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pytest
from brightness_models import LONG_S, BrightModel
from tenant_server import SETTINGS, Running, Serve, until
from two_stages import FakeTransport

from split_infer_ros.buffers.pool import find_pool
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.server.frame import Handle
from split_infer_ros.server.head_stage import HeadStage
from split_infer_ros.server.opened_model import OpenedModel
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant

A, B = Tenant("a", "one", own_head=True), Tenant("b", "one", own_head=True)


class Head:
    """A tenant's head, and the way to it.

    Attributes:
        is_there: whether the backbone finds it.
        holds: whether it leaves batches untouched, until ``go_on``.
        handles: all that it was sent.
    """

    def __init__(self, run: Running, tenant: Tenant, lease_s: float) -> None:
        self.is_there, self.holds = True, False
        self.handles: list[Handle] = []
        self.transport = FakeTransport(self._take, lease_s)
        self._left: list[Handle] = []

        def deliver(handle: Handle, index: int, detections: Detections) -> None:
            run.delivered[tenant.name].append((handle.origins[index], detections))

        def fail(error: Exception) -> None:
            run.note(tenant.name, error)

        self.stage = HeadStage.open(run.models[tenant.model], Limits(), deliver=deliver, on_error=fail)
        self.stage.start()

    def go_on(self) -> None:
        """Takes the batches that it left untouched, and all later ones."""
        self.holds = False
        while self._left:
            self._submit(self._left.pop(0))

    def _take(self, handle: Handle) -> int:
        self.handles.append(handle)
        if not self.is_there:
            return 0
        if self.holds:
            self._left.append(handle)
        else:
            self._submit(handle)
        return 1

    def _submit(self, handle: Handle) -> None:
        self.stage.submit(handle, find_pool(handle.lease))


class Heads:
    """A server of the models ``one`` and ``two`` whose tenants have heads of their own.

    Attributes:
        run: the server.
        of: the heads of each tenant, one for each time that its model was opened.
        lease_s: of heads that come.
    """

    def __init__(self, run: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run = run
        self.of: dict[str, list[Head]] = defaultdict(list)
        self.lease_s = LONG_S
        opens = run.open_model

        def open_model(tenant: Tenant, settings: SharedSettings) -> OpenedModel:
            opened = opens(tenant, settings)
            if not tenant.own_head:
                return opened
            self.of[tenant.name].append(Head(run, tenant, self.lease_s))
            return replace(opened, transport=self.of[tenant.name][-1].transport)

        monkeypatch.setattr(run, "open_model", open_model)


def send_in_turn(run: Running, names: str = "ab", count: int = 5) -> None:
    """Sends so many frames of each tenant, one of each at a time."""
    for value in range(count):
        for name in names:
            run.send(name, value)


@pytest.fixture
def heads(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Iterator[Heads]:
    found = Heads(serve(one=BrightModel("one"), two=BrightModel("two")), monkeypatch)
    yield found
    for head in (head for heads in found.of.values() for head in heads):
        head.go_on()
    found.run.pipeline.stop(LONG_S)
    for head in (head for heads in found.of.values() for head in heads):
        head.stage.stop()


def test_tenants_of_one_model_share_it_and_no_batch(heads: Heads) -> None:
    run = heads.run
    assert run.set(A, B) == {}
    served = run.pipeline.view.models
    assert list(served) == ["one for a", "one for b"]
    assert served["one for a"].instance.model is served["one for b"].instance.model
    with run.pipeline.held():
        send_in_turn(run, count=8)
    run.settled()
    for name in ("a", "b"):
        assert run.counts(name).published == len(run.delivered[name]) == 8
        sources = {origin.source for handle in heads.of[name][0].handles for origin in handle.origins}
        assert sources == {name}
        report = run.pipeline.view.report(name, 1.0)
        assert (report.model, report.slots_used) == ("one", 0)


def test_local_and_own_heads_serve_side_by_side(heads: Heads) -> None:
    run = heads.run
    assert run.set(A, Tenant("c", "one")) == {}
    send_in_turn(run, "ac")
    run.settled()
    assert [len(run.delivered[name]) for name in "ac"] == [5, 5]


def test_missing_head_costs_only_its_own_tenant(heads: Heads) -> None:
    run = heads.run
    run.set(A, B)
    heads.of["a"][0].is_there = False
    send_in_turn(run)
    run.settled()
    assert run.counts("a").dropped == {"no_head": 5}
    assert (run.counts("b").published, run.counts("b").dropped) == (5, {})
    heads.of["a"][0].is_there = True
    run.send("a", 9)
    run.settled()
    assert run.counts("a").published == 1


def test_silent_head_loses_its_leases_and_no_others(heads: Heads) -> None:
    run, heads.lease_s = heads.run, 0.05
    run.set(A)
    heads.lease_s = LONG_S
    run.set(A, B)
    heads.of["a"][0].holds = True
    send_in_turn(run)
    run.settled()
    assert run.counts("a").dropped == {"lease_expired": 5}
    assert (run.counts("b").published, run.counts("b").dropped) == (5, {})


def test_tenant_is_removed_while_its_batches_are_out(heads: Heads) -> None:
    run = heads.run
    run.set(A, B)
    head = heads.of["a"][0]
    head.holds = True
    run.send("a", *range(20))
    slots = run.pipeline.view.models["one for a"].plan.settings.pool_slots
    until(lambda: len(head.handles) == slots)
    out = sum(len(handle.origins) for handle in head.handles)
    run.set(B)
    (ledger,) = run.ledgers["a"]
    assert ledger.counts().dropped == {"removed": 20 - out}
    run.send("b", 1)
    run.settled()
    assert [model.key for model in run.pipeline.view.leaving] == ["one for a"]
    assert head.transport.is_connected
    head.go_on()
    until(lambda: not head.transport.is_connected)
    assert not run.pipeline.view.leaving
    assert ledger.counts().published == len(run.delivered["a"]) == out
    assert len(run.delivered["b"]) == 1


def test_tenant_that_returns_has_a_way_of_its_own(heads: Heads) -> None:
    run = heads.run
    run.set(A)
    first = heads.of["a"][0]
    first.holds = True
    run.send("a", 1)
    until(lambda: len(first.handles) == 1)
    run.set()
    run.set(A)
    run.send("a", 2)
    run.settled()
    first.go_on()
    until(lambda: not first.transport.is_connected)
    assert heads.of["a"][1].transport.is_connected
    assert [ledger.counts().published for ledger in run.ledgers["a"]] == [1, 1]


def test_tenant_gets_another_model_while_batches_are_out(heads: Heads) -> None:
    run = heads.run
    run.set(A)
    first = heads.of["a"][0]
    first.holds = True
    run.send("a", 1)
    until(lambda: len(first.handles) == 1)
    assert run.set(replace(A, model="two")) == {}
    run.send("a", 2)
    until(lambda: run.counts("a").published == 1)
    assert run.counts("a").in_flight == 1
    assert [handle.model for handle in heads.of["a"][1].handles] == ["two"]
    first.go_on()
    run.settled()
    assert run.counts("a").published == 2


def test_tenant_without_memory_leaves_no_way_open(heads: Heads) -> None:
    run = heads.run
    run.set(A)
    budget = run.pipeline.view.models["one for a"].plan.budget_bytes
    run.pipeline.configure(replace(SETTINGS, memory_budget_bytes=1.5 * budget))
    refused = run.set(A, B)
    assert "one for b: Features and staging take" in str(refused["b"])
    assert not heads.of["b"][0].transport.is_connected
    run.send("a", 1)
    run.settled()
    assert run.counts("a").published == 1


def test_stop_drops_what_heads_elsewhere_still_have(heads: Heads) -> None:
    run = heads.run
    run.set(A, B)
    heads.of["a"][0].holds = True
    run.send("a", 1)
    until(lambda: len(heads.of["a"][0].handles) == 1)
    run.pipeline.stop(0.0)
    assert run.counts("a").dropped == {"shutdown": 1}
    run.pipeline.start()
    run.send("b", 2)
    run.settled()
    assert run.counts("b").published == 1
