"""A policy covers all memory of a model: weights, activations, images and features, each from the right allocator."""

from __future__ import annotations

import gc
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from brightness_models import BrightModel, Brightness
from brightness_pipeline import SETTINGS, BrightRun, bright_model
from hypothesis import given
from hypothesis import strategies as st
from networks import graph_of, network_of
from simulated_gpu import Gpu, simulated
from simulated_settings import drawn, gpu_of
from tenant_server import Running

from split_infer_ros.buffers import native_library, pool_allocators
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork
from split_infer_ros.torch_graphs.module_state import state_of

pytestmark = [
    pytest.mark.usefixtures("plain_operators"),
    pytest.mark.skipif(
        not any(map(shutil.which, native_library.COMPILERS)), reason="needs a C compiler, which builds the allocators"
    ),
]
KIND = {Policy.DEVICE: "device", Policy.MANAGED: "managed", Policy.PINNED: "mapped"}  # the simulation's names


@contextmanager
def allocations(gpu: Gpu) -> Iterator[Counter[str]]:
    """Counts the tensors that torch makes on the GPU inside the block, by the kind of memory in which they lie."""
    kinds: Counter[str] = Counter()
    allocate = gpu.allocator.allocate

    def counted(nbytes: int, queue: object) -> object:
        memory, use = allocate(nbytes, queue)  # type: ignore[arg-type]
        kinds[use.block.region.kind] += 1
        return memory, use

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu.allocator, "allocate", counted)
        yield kinds


def weights_of(model: SplitModel) -> dict[str, torch.Tensor]:
    """Returns the weights of the backbone that a pipeline with ``SETTINGS`` runs: the model keeps it."""
    return state_of(model.backbone(SETTINGS.split_point))


def kind_of(gpu: Gpu, tensor: torch.Tensor) -> str:
    region = gpu.memory.find(tensor.data_ptr())
    assert region is not None
    return region.kind


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
@drawn(1)
@given(seed=st.integers(0, 10**6))
def test_policy_covers_all_memory_of_a_model(policy: Policy, graphs: bool, seed: int) -> None:
    settings = replace(SETTINGS, memory_policy=policy.value, cuda_graphs=graphs)
    with simulated(gpu_of(seed, policy, graphs)) as gpu:
        model = bright_model()
        with BrightRun(settings, model) as run:
            weights = weights_of(model)
            kinds = {
                region.kind for each in weights.values() if (region := gpu.memory.find(each.data_ptr())) is not None
            }
            assert weights
            assert kinds == {KIND[policy]}
            with allocations(gpu) as made:
                run.feed(12)
                run.check()
            assert set(made) == {KIND[policy]}, "temporary images and activations"
            recorded = run.pipeline.backbone.plan.graphs
            if graphs:
                assert recorded is not None
                assert kind_of(gpu, recorded.input_of(0).images) == KIND[policy]
                blocks = [block for block in gpu.allocator.blocks if gpu.allocator.is_of_graphs(block.pool)]
                assert {block.region.kind for block in blocks} == {KIND[policy]}
                assert recorded.bytes == sum(block.region.size for block in blocks)


@pytest.mark.parametrize("policy", POLICIES)
def test_weights_are_there_twice_under_device_alone(gpu: Gpu, policy: Policy) -> None:
    model = bright_model()
    expected = {name: tensor.clone() for name, tensor in state_of(graph_of(model)).items()}
    with BrightRun(replace(SETTINGS, memory_policy=policy.value), model) as run:
        names = [name for name in weights_of(model) if name in expected]
        host_bytes = sum(expected[name].nbytes for name in names)
        report = run.pipeline.backbone.report(0.0)
        on_host = model.network.host_weight_bytes(model.split_point("parts.0"))
        assert on_host == (host_bytes if policy is Policy.DEVICE else 0)
        assert report.model_bytes >= host_bytes + on_host
        for name, tensor in network_of(model).graph.state().items():
            assert torch.equal(tensor, expected[name]), "the CPU reads them back"
        run.feed(4)
        run.check()


def test_partition_on_the_cpu_reads_weights_back(gpu: Gpu) -> None:
    model = bright_model()
    images = torch.rand(2, 3, 4, 4)
    (expected,) = model.placed(torch.device("cpu")).backbone("output")(images)
    with BrightRun(replace(SETTINGS, memory_policy="managed"), model):
        assert not model.network.host_weight_bytes(model.split_point("parts.0"))
        (found,) = model.placed(torch.device("cpu")).backbone("output")(images)
        assert torch.equal(found, expected), "the same kernels on the same values"


def test_memory_follows_a_change_of_the_policy(gpu: Gpu) -> None:
    with BrightRun(replace(SETTINGS, memory_policy="managed")) as run:
        for policy in (Policy.PINNED, Policy.DEVICE, Policy.MANAGED, Policy.DEVICE):
            run.feed(4)
            run.pipeline.backbone.configure(replace(SETTINGS, memory_policy=policy.value))
            with allocations(gpu) as made:
                run.feed(4)
                run.check()
            assert made[KIND[policy]]
        run.check()
        gc.collect()
        torch.cuda.empty_cache()
        shared = [region for region in gpu.memory.regions() if region.kind == "managed"]
        assert not shared, "nothing of the last policy is left"


@pytest.mark.parametrize(("policy", "absent"), [("managed", ["cudaDevAttrIntegrated"]), ("device", [])])
def test_gpu_with_its_own_memory_keeps_weights_there(policy: str, absent: list[str]) -> None:
    with simulated(Gpu(absent=absent)) as gpu:
        model = bright_model()
        with BrightRun(replace(SETTINGS, memory_policy=policy), model) as run:
            assert {kind_of(gpu, tensor) for tensor in weights_of(model).values()} == {"device"}
            assert run.pipeline.backbone.report(0.0).memory == policy
            run.feed(4)
            run.check()


def test_without_a_compiler_the_model_runs_and_says_so(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def of_a_copy(source: Path) -> Path:  # no library was installed beside it, and none is in the cache folder
        return native_library.native_library(Path(shutil.copy(source, tmp_path / "other.c")))

    monkeypatch.setattr(pool_allocators, "native_library", of_a_copy)
    monkeypatch.setattr(native_library.shutil, "which", lambda _: None)  # type: ignore[attr-defined]
    with BrightRun(replace(SETTINGS, memory_policy="managed")) as run:
        run.feed(4)
        run.check()
        (notice,) = run.pipeline.notices
    assert notice.startswith("Weights and activations lie in device memory under memory_policy managed: ")
    assert "install gcc" in notice


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_policy_covers_the_memory_of_tenants(gpu: Gpu, policy: Policy, graphs: bool, tmp_path: Path) -> None:
    model = SplitModel(TorchNetwork(BrightModel("model_a").entry, Brightness(1))).placed(torch.device("cuda", 0))
    tenants = [Tenant("a", "model_a")]  # fused models of one architecture compute in torch's common memory
    settings = SharedSettings(
        device="cuda:0", max_waiting=50, window=3, batch_size=2, memory_policy=policy.value, cuda_graphs=graphs
    )
    running = Running(tmp_path / "tuning.jsonl", {"model_a": model}, settings)
    assert running.set(*tenants) == {}
    running.pipeline.start()
    running.measured()  # images that are only for timing lie in torch's common memory
    with allocations(gpu) as made:
        for value in (10, 60, 110):
            for tenant in tenants:
                running.send(tenant.name, value)
        running.settled()
    assert set(made) <= {KIND[policy]}
    assert running.pipeline.view.report("a", 0.0).model_bytes > 0
    running.pipeline.stop(60.0)
    running.check()
    assert running.errors == []
    running.pipeline.close()
