"""Batches that run beside each other, each under the policy that its neighbour calls for: on a GPU that is played."""

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

A, C = Tenant("a", "one", deadline_s=1e3), Tenant("c", "two", deadline_s=2e3)  # and so the order of their turns
D, M, H = Policy.DEVICE, Policy.MANAGED, Policy.PINNED
# A byte is copied in 10 s and mapped in 10 s under M: whatever is computed fits into that, and nothing is lost.
SLOW = MachineConstants(0.0, 1e4, 1e4, 0.0, 1e4, 1e5, 0.0, 0.0, 0.0, 0.0, 0.0)


class Advisor(MemoryAdvisor):
    """Of a GPU with device and managed memory, on which device memory is best alone."""

    constants: MachineConstants | None = SLOW

    @property
    def known(self) -> tuple[MachineConstants, Sequence[Policy]] | None:
        return None if self.constants is None else (self.constants, (D, M))

    def choose(self, name: str, layout: Layout, shared: bool) -> MemoryChoice:
        return MemoryChoice(D if name == "auto" else Policy(name), "as played")


class Gpu:
    """Its memory, and under which policy each batch went; ``room`` is what is left for managed memory."""

    def __init__(self) -> None:
        self.flights: list[tuple[str, Policy]] = []
        self.room = 1 << 20

    def allocate(self, policy: Policy, nbytes: int, device: torch.device) -> Memory:
        if policy is M and nbytes > self.room:
            policy = H  # as where there is no room
        host = torch.empty(nbytes, dtype=torch.uint8)
        return Memory(policy, host, torch.empty_like(host) if policy is D else host)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made, take_off = Gpu(), ServedModel.take_off

    def note(line: ServedModel, frames: Sequence[object], now: float, plan: Plan | None = None) -> InFlightBatch:
        flight = take_off(line, frames, now, plan)  # type: ignore[arg-type]
        made.flights.append((line.key, flight.plan.pool.slots.policy))
        return flight

    monkeypatch.setattr(worker_pool, "max_threads", lambda: 1)  # it has no lanes
    monkeypatch.setattr(ServedModel, "take_off", note)
    monkeypatch.setattr(served_model, "MemoryAdvisor", Advisor)
    monkeypatch.setattr(slot_memory, "allocate", made.allocate)
    return made


def models() -> dict[str, BrightModel]:
    """Of two classes, so that they are not one execution."""
    return {"one": BrightModel("one"), "two": BrightModel("two", idle=100)}


def both_wait(run: Running, first: int) -> None:
    """A frame of each model's waits while one is under way; then all three are served."""
    gate = run.models["one"].gate
    gate.clear()
    run.send("a", first)
    until(lambda: not run.pipeline._waiting)
    run.send("a", first + 1)
    run.send("c", first + 2)
    gate.set()
    run.settled()


def ready_beside(run: Running) -> bool:
    return any(line.co_run_plans.plans for line in run.pipeline._dispatcher.models.values())


def test_a_pair_runs_under_two_policies_and_whoever_is_alone_keeps_its_own(gpu: Gpu, start: Start) -> None:
    run = start(A, C, **models())
    both_wait(run, 1)
    assert gpu.flights == [("one", D), ("one", D), ("two", D)], "there is no other memory yet"
    assert "also" not in run.pipeline.report("a", 0.0).memory_reason
    until(lambda: ready_beside(run))
    (line,) = [line for line in run.pipeline._dispatcher.models.values() if line.co_run_plans.plans]
    both_wait(run, 4)
    assert gpu.flights[3:] == [("one", D), ("one", D), ("two", M)]
    assert line.key == "two"
    run.send("c", 7)
    run.settled()
    assert gpu.flights[-1] == ("two", D)
    report = run.pipeline.report("c", 0.0)
    assert report.memory == "device"
    assert report.memory_reason.startswith("as played; also managed, for batches whose neighbour in the queue calls")
    assert report.pool_bytes == 3 * line.plan.pool.bytes // 2, "device memory is there twice, managed once"
    assert run.errors == []


@pytest.mark.parametrize("change", [{"memory_policy": "managed"}, {"constants": None}])
def test_where_the_policy_is_not_ours_to_choose_all_is_as_it_was(
    gpu: Gpu, start: Start, change: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS
    if "constants" in change:
        monkeypatch.setattr(Advisor, "constants", None)
    else:
        settings = replace(SETTINGS, memory_policy="managed")
    run = start(A, C, settings=settings, **models())
    for first in (1, 4):
        both_wait(run, first)
    assert {policy for _, policy in gpu.flights} == {D if settings is SETTINGS else M}
    assert not ready_beside(run)


@pytest.mark.parametrize("short_of", ["budget", "memory"])
def test_without_memory_for_it_nothing_is_paired_and_nobody_is_refused(gpu: Gpu, start: Start, short_of: str) -> None:
    run = start(A, C, **models())
    lines = run.pipeline._dispatcher.models.values()
    if short_of == "budget":
        budget = sum(line.budget_bytes for line in lines)
        run.pipeline.configure(replace(SETTINGS, memory_budget_bytes=budget))
    else:
        gpu.room = 0
    for first in (1, 4, 7):
        both_wait(run, first)
    assert {policy for _, policy in gpu.flights} == {D}
    assert not ready_beside(run)
    assert run.errors == []


def test_memory_for_pairs_gives_way_to_another_model(gpu: Gpu, start: Start) -> None:
    run = start(A, C, **models(), three=BrightModel("three"))
    both_wait(run, 1)
    until(lambda: ready_beside(run))
    lines = run.pipeline._dispatcher.models.values()
    plain = [line.budget_of(line.plan) for line in lines]
    run.pipeline.configure(replace(SETTINGS, memory_budget_bytes=sum(plain) + plain[0]))
    both_wait(run, 4)
    until(lambda: ready_beside(run))
    assert run.set(A, C, replace(A, name="d", model="three")) == {}
    assert not ready_beside(run)
    assert all(pool.slots.policy is D for pool in (line.plan.pool for line in lines))
    run.send("d", 7)
    run.settled()
    assert run.counts("d").published == 1
