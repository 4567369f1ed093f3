"""Is every request served once in each way, and what is claimed? Times depend on the machine and are not for a test."""

from __future__ import annotations

import _tenant_rivals as rivals
import multi_tenant as bench
import pytest
import torch

from split_infer_ros.split.model import load_model
from split_infer_ros.tenancy.costs import Costs
from split_infer_ros.tenancy.measure import blank

MODELS = ("shapes", "squeezenet1_0")
COSTS = Costs({"shapes": 1, "squeezenet1_0": 2}, {"shapes": {1: 0.01}, "squeezenet1_0": {1: 0.02}})


def test_a_trace_is_the_same_each_time_and_even() -> None:
    trace = rivals.poisson_trace(bench.MODELS, 1000, 10.0)
    assert trace == rivals.poisson_trace(bench.MODELS, 1000, 10.0)
    counts = [sum(request.model == model for request in trace) for model in bench.MODELS]
    assert sorted(counts) == [333, 333, 334]
    assert 80 < trace[-1].arrival_s < 120
    assert [request.arrival_s for request in trace] == sorted(request.arrival_s for request in trace)


@pytest.mark.parametrize("name", list(bench.rivals(COSTS, [2])))
def test_every_way_serves_each_request_once(name: str) -> None:
    models = {model: load_model(model, "random", "cpu") for model in MODELS}
    load = rivals.Load(models, {model: torch.rand_like(blank(found, 1)) for model, found in models.items()})
    log = bench.rivals(COSTS, [2])[name](rivals.poisson_trace(MODELS, 6, 200.0), load)
    assert sorted(log.arrival_s) == sorted(log.start_s) == sorted(log.end_s) == list(range(6))
    assert all(log.arrival_s[number] <= start <= log.end_s[number] for number, start in log.start_s.items())
    found = bench.facts(log)
    assert found["delay_mean_s"] <= found["delay_p99_s"]
    assert found["per_second"] > 0


def test_what_is_claimed_with_and_without_a_gpu() -> None:
    def served(rival: str, per_second: float, delay: float) -> dict[str, object]:
        facts = {"per_second": per_second, "execution_s": 1.0, "delay_mean_s": delay, "delay_p99_s": 2 * delay}
        return {"what": "poisson", "load": 3.0, "rival": rival} | facts

    rows = [
        {"what": "capacity", "per_second": 10.0, "bound_per_second": 20.0},
        served(bench.SEQUENTIAL, 10.0, 4.0), served(bench.CONCURRENT, 10.0, 3.0), served(bench.BREADTH_FIRST, 9.0, 5.0),
        served("merge, window 8", 15.0, 2.5), served("merge and fuse, window 8", 18.0, 2.0),
        {"what": "three requests", "rival": bench.SEQUENTIAL, "per_second": 10.0},
        {"what": "three requests", "rival": bench.FUSE, "per_second": 9.9},
        {"what": "decision", "waiting": bench.WAITING, "p50_us": 40.0},
    ]  # fmt: skip
    at = "at 3 times capacity, merge and fuse, window 8"
    values = {claim.name: (claim.value, claim.holds) for claim in bench.conclude(rows, on_gpu=True)}
    assert values[f"{at}: part of the gap to the bound"] == (0.8, True)
    assert values[f"{at}: mean delay, times the best rival's"] == (pytest.approx(2 / 3), True)
    assert values["three requests: throughput, times sequential"] == (0.99, True)
    assert values["merge alone: throughput, times sequential"] == (1.5, False)
    on_cpu = {claim.name for claim in bench.conclude(rows, on_gpu=False)}
    assert len(on_cpu) == 5
    assert on_cpu < set(values)
    assert [len(panel.samples) for panel in bench.panels(rows)] == [5] * 4
