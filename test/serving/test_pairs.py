"""Batches that are co-run, each under the policy that its neighbour calls for, on a simulated GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from bright import BrightModel
from running import SETTINGS, Running, Start, until

from split_infer_ros.buffers import slot_memory
from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Memory
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.pipeline.in_flight import InFlightBatch
from split_infer_ros.pipeline.memory_choice import MemoryAdvisor, MemoryChoice
from split_infer_ros.pipeline.plan import Plan
from split_infer_ros.serving import served_model, worker_pool
from split_infer_ros.serving.served_model import ServedModel
from split_infer_ros.serving.tenant import Tenant

A, C = Tenant("a", "one", deadline_s=1e3), Tenant("c", "two", deadline_s=2e3)  # in the order of their deadlines
D, M, H = Policy.DEVICE, Policy.MANAGED, Policy.PINNED
# A byte is copied in 10 s and mapped in 10 s under M: every computation fits into that, and nothing is lost.
SLOW = MachineConstants(0.0, 1e4, 1e4, 0.0, 1e4, 1e5, 0.0, 0.0, 0.0, 0.0, 0.0)


class SimulatedAdvisor(MemoryAdvisor):
    """Advises for a GPU with device and managed memory, on which device memory is best alone."""

    constants: MachineConstants | None = SLOW

    @property
    def assignment_inputs(self) -> tuple[MachineConstants, Sequence[Policy]] | None:
        return None if self.constants is None else (self.constants, (D, M))

    def choose(self, name: str, layout: Layout, shared: bool) -> MemoryChoice:
        return MemoryChoice(D if name == "auto" else Policy(name), "as simulated")


class SimulatedGpu:
    """A GPU's memory, and the policy under which each batch ran.

    Attributes:
        batches: model and policy of each batch.
        room: the bytes that are left for managed memory.
    """

    def __init__(self) -> None:
        self.batches: list[tuple[str, Policy]] = []
        self.room = 1 << 20

    def allocate(self, policy: Policy, nbytes: int, device: torch.device) -> Memory:
        if policy is M and nbytes > self.room:
            policy = H  # like a GPU without room
        host = torch.empty(nbytes, dtype=torch.uint8)
        return Memory(policy, host, torch.empty_like(host) if policy is D else host)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimulatedGpu:
    gpu, take_off = SimulatedGpu(), ServedModel.take_off

    def note_policy(
        model: ServedModel, frames: Sequence[object], now: float, plan: Plan | None = None
    ) -> InFlightBatch:
        batch = take_off(model, frames, now, plan)  # type: ignore[arg-type]
        gpu.batches.append((model.key, batch.plan.pool.slots.policy))
        return batch

    monkeypatch.setattr(worker_pool, "max_threads", lambda: 1)  # without lanes
    monkeypatch.setattr(ServedModel, "take_off", note_policy)
    monkeypatch.setattr(served_model, "MemoryAdvisor", SimulatedAdvisor)
    monkeypatch.setattr(slot_memory, "allocate", gpu.allocate)
    return gpu


def models() -> dict[str, BrightModel]:
    """Two models of two size classes, so that they are not fused."""
    return {"one": BrightModel("one"), "two": BrightModel("two", idle=100)}


def serve_while_both_wait(run: Running, first: int) -> None:
    """Lets a frame of each model wait while a batch runs; then all three are served."""
    gate = run.models["one"].gate
    gate.clear()
    run.send("a", first)
    until(lambda: not run.pipeline._waiting)
    run.send("a", first + 1)
    run.send("c", first + 2)
    gate.set()
    run.settled()


def has_co_run_plans(run: Running) -> bool:
    return any(model.co_run_plans.plans for model in run.pipeline._dispatcher.models.values())


def test_pair_runs_under_two_policies(gpu: SimulatedGpu, start: Start) -> None:
    run = start(A, C, **models())
    serve_while_both_wait(run, 1)
    assert gpu.batches == [("one", D), ("one", D), ("two", D)], "there is no other memory yet"
    assert "also" not in run.pipeline.report("a", 0.0).memory_reason
    until(lambda: has_co_run_plans(run))
    (model,) = [model for model in run.pipeline._dispatcher.models.values() if model.co_run_plans.plans]
    serve_while_both_wait(run, 4)
    assert gpu.batches[3:] == [("one", D), ("one", D), ("two", M)]
    assert model.key == "two"
    run.send("c", 7)
    run.settled()
    assert gpu.batches[-1] == ("two", D)
    report = run.pipeline.report("c", 0.0)
    assert report.memory == "device"
    assert report.memory_reason.startswith("as simulated; also managed, for batches whose neighbour in the queue calls")
    assert report.pool_bytes == 3 * model.plan.pool.bytes // 2, "device memory is there twice, managed once"
    assert run.errors == []


@pytest.mark.parametrize("change", [{"memory_policy": "managed"}, {"constants": None}])
def test_fixed_policy_prevents_pairs(
    gpu: SimulatedGpu, start: Start, change: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS
    if "constants" in change:
        monkeypatch.setattr(SimulatedAdvisor, "constants", None)
    else:
        settings = replace(SETTINGS, memory_policy="managed")
    run = start(A, C, settings=settings, **models())
    for first in (1, 4):
        serve_while_both_wait(run, first)
    assert {policy for _, policy in gpu.batches} == {D if settings is SETTINGS else M}
    assert not has_co_run_plans(run)


@pytest.mark.parametrize("short_of", ["budget", "memory"])
def test_without_memory_nothing_is_paired_or_refused(gpu: SimulatedGpu, start: Start, short_of: str) -> None:
    run = start(A, C, **models())
    served = run.pipeline._dispatcher.models.values()
    if short_of == "budget":
        budget = sum(model.budget_bytes for model in served)
        run.pipeline.configure(replace(SETTINGS, memory_budget_bytes=budget))
    else:
        gpu.room = 0
    for first in (1, 4, 7):
        serve_while_both_wait(run, first)
    assert {policy for _, policy in gpu.batches} == {D}
    assert not has_co_run_plans(run)
    assert run.errors == []


def test_memory_for_pairs_is_freed_for_another_model(gpu: SimulatedGpu, start: Start) -> None:
    run = start(A, C, **models(), three=BrightModel("three"))
    serve_while_both_wait(run, 1)
    until(lambda: has_co_run_plans(run))
    served = run.pipeline._dispatcher.models.values()
    alone_bytes = [model.budget_of(model.plan) for model in served]
    run.pipeline.configure(replace(SETTINGS, memory_budget_bytes=sum(alone_bytes) + alone_bytes[0]))
    serve_while_both_wait(run, 4)
    until(lambda: has_co_run_plans(run))
    assert run.set(A, C, replace(A, name="d", model="three")) == {}
    assert not has_co_run_plans(run)
    assert all(pool.slots.policy is D for pool in (model.plan.pool for model in served))
    run.send("d", 7)
    run.settled()
    assert run.counts("d").published == 1
