"""Tenants on the simulated GPU: models come and go, and run one by one, concurrently and as one graph."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from brightness_models import BrightModel, Brightness
from hypothesis import given
from hypothesis import strategies as st
from simulated_gpu import simulated
from simulated_settings import drawn, gpu_of
from tenant_server import Running, until

from split_infer_ros.server.costs.cost_table import CostTable
from split_infer_ros.server.schedule import scheduler
from split_infer_ros.server.schedule.execution_costs import ExecutionCosts
from split_infer_ros.server.schedule.request import Request
from split_infer_ros.server.schedule.stacking import StackedExecution, best_stacked_execution
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork

pytestmark = pytest.mark.usefixtures("plain_operators")

A, B, C, D = (Tenant(name, f"model_{name}") for name in "abcd")


GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
# Few combinations of models are measured and recorded.
SETTINGS = SharedSettings(device="cuda:0", max_waiting=50, memory_policy="device", window=3, batch_size=2)


def load(name: str, device: torch.device = GPU) -> SplitModel:
    return SplitModel(TorchNetwork(BrightModel(name).entry, Brightness(1))).placed(device)


def models() -> dict[str, SplitModel]:
    return {tenant.model: load(tenant.model) for tenant in (A, B, C, D)}


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("policy", ["device", "managed", "pinned"])
@drawn(1)
@given(seed=st.integers(0, 10**6))
def test_tenants_come_and_go(policy: str, graphs: bool, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = replace(SETTINGS, memory_policy=policy, cuda_graphs=graphs)
    folder: Path = tmp_path_factory.mktemp("database")
    with simulated(gpu_of(seed, policy, graphs)):
        running = Running(
            folder / "tuning.jsonl", {f"model_{name}": load(f"model_{name}") for name in "abcd"}, settings
        )
        assert running.set(A, B) == {}
        running.pipeline.start()
        for tenants in ((A, B), (A, B, C), (B, C), (B, C, D), (A, D)):
            running.set(*tenants)
            for value in (10, 60, 110, 160):
                for tenant in tenants:
                    running.send(tenant.name, value)
            running.settled()
        running.pipeline.stop(60.0)
        running.check()
        assert running.errors == []
        assert all(len(found) >= 4 for found in running.delivered.values())
        running.pipeline.close()


@pytest.mark.parametrize("graphs", [True, False])
@drawn(2)
@given(seed=st.integers(0, 10**6))
def test_split_point_changes_under_load(graphs: bool, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = replace(SETTINGS, cuda_graphs=graphs)
    folder: Path = tmp_path_factory.mktemp("database")
    with simulated(gpu_of(seed, graphs)):
        running = Running(folder / "tuning.jsonl", {f"model_{name}": load(f"model_{name}") for name in "ab"}, settings)
        assert running.set(A, B) == {}
        running.pipeline.start()
        for split_point in ("parts.1", "parts.0", "parts.1", "parts.0"):
            for value in (10, 60, 110, 160):
                for tenant in (A, B):
                    running.send(tenant.name, value)
            running.pipeline.configure(replace(settings, split_point=split_point))
        running.settled()
        running.pipeline.stop(60.0)
        running.check()
        assert running.errors == []
        assert all(len(found) == 16 for found in running.delivered.values())
        running.pipeline.close()


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("policy", ["device", "pinned"])
def test_a_model_on_the_cpu_beside_one_on_the_gpu(policy: str, graphs: bool, tmp_path: Path) -> None:
    """No graph holds the model on the CPU: its replays would give the results of the batch that was recorded."""
    settings = replace(SETTINGS, memory_policy=policy, cuda_graphs=graphs)
    with simulated(gpu_of(1, policy, graphs)):
        running = Running(tmp_path / "tuning.jsonl", {A.model: load(A.model), B.model: load(B.model, CPU)}, settings)
        assert running.set(A, B) == {}
        running.pipeline.start()
        until(lambda: running.pipeline.view.is_measured)  # what can be recorded is
        for value in (10, 60, 110, 160, 10, 160):
            for tenant in (A, B):
                running.send(tenant.name, value)
            running.settled()
        running.pipeline.stop(60.0)
        running.check()
        assert running.errors == []
        assert [len(running.delivered[tenant.name]) for tenant in (A, B)] == [6, 6]
        running.pipeline.close()


def for_nothing(
    window: Sequence[Request], costs: ExecutionCosts, *, now: float, max_batch_size: int
) -> StackedExecution | None:
    """Chooses a stack wherever there is one."""
    found = best_stacked_execution(window, costs, now=now, max_batch_size=max_batch_size)
    return found and replace(found, seconds=1e-9)


@pytest.mark.parametrize("graphs", [True, False])
@drawn(2)
@given(seed=st.integers(0, 10**6))
def test_models_run_as_one_network(graphs: bool, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = replace(SETTINGS, cuda_graphs=graphs)
    folder: Path = tmp_path_factory.mktemp("database")
    with pytest.MonkeyPatch.context() as patch, simulated(gpu_of(seed, graphs)):
        patch.setattr(scheduler, "best_stacked_execution", for_nothing)
        patch.setattr(CostTable, "stack_pays", lambda table, members: None)
        running = Running(
            folder / "tuning.jsonl", {f"model_{name}": load(f"model_{name}") for name in "abcd"}, settings
        )
        assert running.set(A, B) == {}
        running.pipeline.start()
        for tenants in ((A, B), (A, B, C)):
            running.set(*tenants)
            until(lambda: running.pipeline.view.is_measured)  # the costs of the network are known
            for value in (10, 60, 110):
                with running.pipeline.held():
                    for tenant in (*tenants, B):
                        running.send(tenant.name, value)
                running.settled()
        stacked = {name: running.pipeline.view.report(name, time.monotonic()).stacked_batches for name in "abc"}
        running.pipeline.stop(60.0)
        running.check()
        assert running.errors == []
        assert all(stacked.values()), stacked
        running.pipeline.close()
