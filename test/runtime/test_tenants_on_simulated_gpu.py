"""Tenants on the simulated GPU: models come and go, and run one by one, concurrently and as one graph."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from bright import CPU, BrightModel, Brightness
from hypothesis import given
from hypothesis import strategies as st
from running import Running
from simulated_gpu import Gpu, simulated
from simulated_settings import drawn

from split_infer_ros.serving import tenant_registry
from split_infer_ros.serving.shared_settings import SharedSettings
from split_infer_ros.serving.tenant import Tenant
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.torch_model import TorchModel

A, B, C, D = (Tenant(name, f"model_{name}") for name in "abcd")


def load(spec: ModelSpec) -> TorchModel:
    model = TorchModel(BrightModel(spec.name).entry, Brightness(1), CPU)
    return model.placed(torch.device("cuda", 0), torch.float32)


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("policy", ["device", "managed", "pinned"])
@drawn(2)
@given(seed=st.integers(0, 10**6))
def test_tenants_come_and_go(policy: str, graphs: bool, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = SharedSettings(device="cuda:0", max_waiting=50, memory_policy=policy, cuda_graphs=graphs)
    folder: Path = tmp_path_factory.mktemp("database")
    with pytest.MonkeyPatch.context() as patch, simulated(Gpu(Random(seed).randrange)):
        patch.setattr(tenant_registry, "load_model", load)
        running = Running(folder / "tuning.jsonl", {}, settings)
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
