from __future__ import annotations

import json
import math

import _policy_runs
import _ring_cost
import memory_policies as bench
import pytest
import torch
from boards import AGX

from split_infer_ros.buffers.memory import Memory
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.memory_model.overhead import overhead
from split_infer_ros.telemetry.report import Report

CPU = torch.device("cpu")


def test_constants_of_synthetic_machines_are_recovered() -> None:
    rows, (off, certain) = bench.recover(2)
    assert len(rows) == 2 * 11
    assert off.value == pytest.approx(100 * max(row["error"] for row in rows))
    assert off.holds
    assert certain.value == 1


def two_sided(policy: Policy, nbytes: int, device: torch.device) -> Memory:
    """Memory of this CPU in the place of a GPU's: with policy device, on two sides."""
    host = torch.zeros(nbytes, dtype=torch.uint8)
    return Memory(policy, host, torch.zeros_like(host) if policy is Policy.DEVICE else host)


@pytest.mark.parametrize("rereads", [0, 2])
def test_turns_under_each_policy_are_measured_and_predicted(rereads: int) -> None:
    runs = _policy_runs.PolicyRuns(CPU, 1, two_sided)
    sizes = (1 << 18, 1 << 20)
    rows = list(runs.compare(_policy_runs.Case("case", sizes, rereads), AGX, POLICIES))
    assert [(row["bytes"], row["policy"]) for row in rows] == [(n, p.value) for n in sizes for p in POLICIES]
    for row in rows:
        policy = Policy(row["policy"])
        assert row["footprint_bytes"] == row["bytes"] * (2 if policy is Policy.DEVICE else 1)
        assert row["measured_ms"] > 0
        predicted = overhead(_policy_runs.task_of(row["bytes"], rereads), policy, AGX).total_ms
        least = min(row["predicted_ms"] for row in rows)
        assert row["predicted_ms"] > predicted
        assert least > 0
        assert row["error"] == pytest.approx(abs(row["predicted_ms"] / row["measured_ms"] - 1))
    memory = two_sided(Policy.DEVICE, 1 << 18, CPU)
    runs._turn(memory, rereads)
    assert (memory.host.view(torch.float32) == 1).all()  # there, changed once, and back


def test_what_is_claimed_of_policies() -> None:
    rows = [
        {
            "case": case,
            "bytes": 100,
            "policy": policy.value,
            "auto": "managed",
            "footprint_bytes": 200 if policy is Policy.DEVICE else 100,
            "measured_ms": 4.0 + times * place,
            "error": error,
        }
        for case, times, error in (("one", 0.0, 0.04), ("two", 1.0, 0.09))
        for place, policy in enumerate(POLICIES)
    ]
    mean, worst, loss, part = bench.claims_of_policies(rows)
    assert mean.value == pytest.approx(6.0)
    assert worst.value == pytest.approx(9.0)
    assert loss.value == pytest.approx(25.0)
    assert not loss.holds
    assert part.value == 0.5
    assert part.holds
    panels = bench.panels_of_policies([{**row, "case": bench.CASES[0].name} for row in rows])
    assert panels[0].samples["managed"] == [4.0, 5.0]


def test_a_policy_that_cannot_be_predicted_shows_nothing() -> None:
    assert math.isnan(bench.geometric_mean([0.1, math.nan]))
    assert bench.geometric_mean([0.0, 0.0]) == pytest.approx(bench.LEAST_ERROR)


def test_hand_overs_are_timed_in_a_process_and_across_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (_ring_cost, bench):
        monkeypatch.setattr(name, "SIZES", (8192, 100_000))
    claims, rows = [], []
    found_in = {"in process": _ring_cost.in_process(3), "across processes": _ring_cost.across_processes(3)}
    for place, times in found_in.items():
        assert all(len(found) == 3 and min(found) > 0 for found in times.values())
        claims += bench.ring_claims(place, times)
        rows += bench.ring_rows(place, times)
        assert bench.ring_panel(place, times).samples
    assert [claim.goal for claim in claims] == [2, 2, 10]
    rivals = {bench.RING, _ring_cost.ALONE, bench.FRESH, bench.REUSED, bench.PROCESS_QUEUE}
    assert {row["rival"] for row in rows} == rivals
    report = Report("memory_policies", claims, rows)
    assert json.loads(json.dumps(report.as_json(), allow_nan=False))["bench"] == "memory_policies"
