"""Batches that are co-run, each under the policy that its neighbour calls for, on a simulated GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from brightness_models import BrightModel
from tenant_server import SETTINGS as DEFAULT_SETTINGS
from tenant_server import Running, Serve, until

from split_infer_ros.buffers import slot_memory
from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Memory, Place, SwitchableMemory
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.memory_choice import MemoryAdvisor, MemoryChoice, ReadKernels
from split_infer_ros.server import server, tenant_registry
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.server.tenant import Tenant

A, C = Tenant("a", "one", deadline_s=30.0), Tenant("c", "two", deadline_s=60.0)  # in the order of their deadlines
D, M, H = Policy.DEVICE, Policy.MANAGED, Policy.PINNED
SETTINGS = replace(DEFAULT_SETTINGS, split_point="parts.1")  # its features have fewer bytes than the images
# A byte is copied in 10 s and mapped in 10 s under M: every computation fits into that. A launch costs a nanosecond
# more under M, so that device memory is best alone and a pair hides what it loses.
SLOW = MachineConstants(0.0, 1e4, 1e4, 0.0, 1e4, 1e5, 1e-6, 0.0, 0.0, 0.0, 0.0, 0.0)


class SimulatedAdvisor(MemoryAdvisor):
    """Advises for a GPU with device and managed memory, on which device memory is best alone."""

    constants: MachineConstants | None = SLOW
    best = D

    @property
    def assignment_inputs(self) -> tuple[MachineConstants, Sequence[Policy]] | None:
        return None if self.constants is None else (self.constants, (D, M))

    def choose(self, name: str, layout: Layout, shared: bool, kernels: ReadKernels = tuple) -> MemoryChoice:
        policy = self.best if name == "auto" else Policy(name)
        return MemoryChoice(policy, "as simulated", switchable=name == "auto" and policy is D)


class SimulatedGpu:
    """A GPU's memory, and the policy under which each batch ran.

    Attributes:
        batches: model and policy of each batch.
        can_switch: whether memory serves several policies.
    """

    def __init__(self) -> None:
        self.batches: list[tuple[str, Policy]] = []
        self.can_switch = True

    def allocate(self, place: Place, nbytes: int) -> Memory:
        halves = [torch.empty(nbytes, dtype=torch.uint8) for _ in range(2)]
        if place.switchable and self.can_switch:
            return SwitchableMemory(*(Memory(policy, half, half) for policy, half in zip((M, H), halves, strict=True)))
        return Memory(place.policy, halves[0], halves[place.policy is D])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimulatedGpu:
    gpu, start_batch = SimulatedGpu(), ServedModel.start_batch

    def note_policy(model: ServedModel, frames: Any, now: float, plan: Plan | None = None) -> Batch:
        batch = start_batch(model, frames, now, plan)
        gpu.batches.append((model.key, batch.plan.pool.slots.policy))
        return batch

    monkeypatch.setattr(server, "max_threads", lambda: 1)  # without lanes
    monkeypatch.setattr(ServedModel, "start_batch", note_policy)
    monkeypatch.setattr(tenant_registry, "MemoryAdvisor", SimulatedAdvisor)
    monkeypatch.setattr(slot_memory, "allocate_at", gpu.allocate)
    return gpu


def models() -> dict[str, BrightModel]:
    """Two models of two size classes, so that they are not fused."""
    return {"one": BrightModel("one"), "two": BrightModel("two", idle=100)}


def serve_while_both_wait(run: Running, first: int) -> None:
    """Lets a frame of each model wait while a batch runs; then all three are served."""
    gate = run.models["one"].gate
    gate.clear()
    run.send("a", first)
    until(lambda: not run.pipeline.view.num_waiting)
    run.send("a", first + 1)
    run.send("c", first + 2)
    gate.set()
    run.settled()


def has_co_run_plans(run: Running) -> bool:
    return any(model.co_runs.plans for model in run.pipeline.view.models.values())


def test_pair_runs_under_two_policies(gpu: SimulatedGpu, serve: Serve) -> None:
    run = serve(A, C, settings=SETTINGS, **models())
    two = next(model for model in run.pipeline.view.models.values() if model.key == "two")
    alone = run.pipeline.view.report("c", 0.0)
    assert "also" not in alone.memory_reason
    serve_while_both_wait(run, 1)
    assert gpu.batches == [("one", D), ("one", D), ("two", M)]
    assert run.pipeline.view.report("a", 0.0).memory_reason == "as simulated", "its own policy is the one for pairs"
    run.send("c", 4)
    run.settled()
    assert gpu.batches[-1] == ("two", D)
    report = run.pipeline.view.report("c", 0.0)
    assert report.memory == "device"
    assert report.memory_reason.startswith("as simulated; also managed, for batches whose neighbour in the queue calls")
    assert (report.pool_bytes, report.staging_bytes) == (alone.pool_bytes, alone.staging_bytes), (
        "no second set of slots"
    )
    assert report.slots_used == 0
    switched = two.co_runs.plans[M]
    assert switched.pool.leases is two.plan.pool.leases
    assert switched.pool.slots.bytes == two.plan.pool.bytes // 2
    assert run.errors == []


@pytest.mark.parametrize("change", [{"memory_policy": "managed"}, {"constants": None}])
def test_fixed_policy_prevents_pairs(
    gpu: SimulatedGpu, serve: Serve, change: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS
    if "constants" in change:
        monkeypatch.setattr(SimulatedAdvisor, "constants", None)
    else:
        settings = replace(SETTINGS, memory_policy="managed")
    run = serve(A, C, settings=settings, **models())
    for first in (1, 4):
        serve_while_both_wait(run, first)
    assert {policy for _, policy in gpu.batches} == {D if settings is SETTINGS else M}
    assert not has_co_run_plans(run)


def test_memory_of_one_policy_prevents_pairs(gpu: SimulatedGpu, serve: Serve) -> None:
    gpu.can_switch = False
    run = serve(A, C, settings=SETTINGS, **models())
    for first in (1, 4):
        serve_while_both_wait(run, first)
    assert {policy for _, policy in gpu.batches} == {D}
    assert not has_co_run_plans(run)
    assert run.errors == []


def test_pairs_follow_a_change_of_settings(gpu: SimulatedGpu, serve: Serve) -> None:
    run = serve(A, C, settings=SETTINGS, **models())
    serve_while_both_wait(run, 1)
    assert has_co_run_plans(run)
    run.pipeline.configure(replace(SETTINGS, pool_slots=3))
    assert not has_co_run_plans(run), "they would keep the memory of the plan that was replaced"
    serve_while_both_wait(run, 4)
    (switched,) = [plan for each in run.pipeline.view.models.values() for plan in each.co_runs.plans.values()]
    assert len(switched.pool.leases) == 3
    assert gpu.batches[-1] == ("two", M)


def test_switch_is_undone_when_its_neighbour_leaves(
    gpu: SimulatedGpu, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the guidelines had switched both models to managed memory, next to a third one's kernels."""
    monkeypatch.setattr(SimulatedAdvisor, "best", M)
    run = serve(A, C, settings=SETTINGS, **models())
    run.send("a", 1)
    run.settled()
    monkeypatch.setattr(SimulatedAdvisor, "best", D)
    used = {model.key: model for model in run.pipeline.view.models.values()}
    monkeypatch.setattr(
        SimulatedAdvisor, "breaks_guideline", property(lambda advisor: advisor is used["one"].instance.advisor)
    )
    assert run.set(A) == {}
    run.send("a", 2, 3)
    run.settled()
    assert gpu.batches[0] == ("one", M)
    assert {policy for _, policy in gpu.batches[1:]} == {D}
    assert run.pipeline.view.report("a", 0.0).memory == "device"
    assert run.counts("a").published == 3
    assert run.errors == []


def test_switch_stays_without_memory_for_another_plan(
    gpu: SimulatedGpu, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedAdvisor, "best", M)
    run = serve(A, C, settings=SETTINGS, **models())
    budget = sum(model.plan.budget_bytes for model in run.pipeline.view.models.values())
    run.pipeline.configure(replace(SETTINGS, memory_budget_bytes=budget))
    monkeypatch.setattr(SimulatedAdvisor, "best", D)
    monkeypatch.setattr(SimulatedAdvisor, "breaks_guideline", True)
    assert run.set(A, C) == {}
    run.send("a", 2)
    run.settled()
    assert gpu.batches == [("one", M)]
    assert run.errors == []
