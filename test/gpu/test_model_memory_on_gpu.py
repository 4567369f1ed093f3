"""A policy covers all memory of a model, as a GPU has it: CUDA itself says of what kind each tensor's memory is."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gpu_frames import SETTINGS, check_scores, picture, running
from real_gpu import GPU, SANITIZED, free_bytes, need

from split_infer_ros.buffers import cuda as buffers_cuda
from split_infer_ros.buffers.memory import Place, SwitchableMemory
from split_infer_ros.buffers.memory_allocation import allocate_at
from split_infer_ros.buffers.memory_pool import MemoryPool
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.buffers.pool_allocators import POOLED, pool_allocator
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime import cuda
from split_infer_ros.runtime.captures import capture
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.split.load import build_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.torch_network import TorchNetwork
from split_infer_ros.torch_graphs.module_state import state_of

MB = 1 << 20
LONG_S = 60.0
HERE = Path(__file__).parents[2]
POOLED_POLICIES = sorted(POOLED, key=str)


def kind_of(tensor: torch.Tensor) -> Policy:
    """Asks CUDA for the kind of memory in which a tensor lies."""
    kind = cuda.call("cudaPointerGetAttributes", tensor.data_ptr()).type
    kinds = cuda.binding().cudaMemoryType
    return {
        kinds.cudaMemoryTypeDevice: Policy.DEVICE,
        kinds.cudaMemoryTypeManaged: Policy.MANAGED,
        kinds.cudaMemoryTypeHost: Policy.PINNED,
    }[kind]


def need_pools(policy: Policy) -> None:
    """Skips where this GPU or this torch has no such memory, or where no C compiler is."""
    need(policy)
    if policy in POOLED:
        try:
            pool_allocator(policy)
        except ConfigurationError as error:
            pytest.skip(str(error))


@pytest.fixture
def shares_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the package take the GPU for one that shares the CPU's memory, where policies cover weights."""
    attributes = replace(buffers_cuda.device_attributes(0), integrated=True)
    monkeypatch.setattr(buffers_cuda, "device_attributes", lambda _: attributes)


@pytest.mark.parametrize("policy", POOLED_POLICIES)
def test_tensors_of_the_block_lie_in_the_pool(policy: Policy) -> None:
    need_pools(policy)
    pool = MemoryPool(policy, GPU)
    with pool.allocating():
        inside = torch.ones(MB, device=GPU)
        result = 2 * inside
    outside = torch.ones(MB, device=GPU)
    assert [kind_of(tensor) for tensor in (inside, result, outside)] == [policy, policy, Policy.DEVICE]
    assert result.sum().item() == 2 * MB
    assert pool.bytes >= 2 * 4 * MB


@pytest.mark.parametrize("policy", POOLED_POLICIES)
def test_memory_of_a_pool_is_given_back(policy: Policy) -> None:
    need_pools(policy)
    free = []
    for _ in range(4):
        pool = MemoryPool(policy, GPU)
        with pool.allocating():
            values = torch.empty(512 * MB, dtype=torch.uint8, device=GPU)
        values[:1].fill_(1)
        torch.cuda.synchronize()
        del values, pool
        gc.collect()
        free.append(free_bytes())
    assert free[-1] > free[0] - 256 * MB, free  # the first round takes what the process keeps


def test_more_managed_memory_than_is_free_is_refused() -> None:
    need_pools(Policy.MANAGED)
    pool, too_much = MemoryPool(Policy.MANAGED, GPU), free_bytes() + 256 * MB
    with pool.allocating(), pytest.raises(torch.OutOfMemoryError):
        torch.empty(too_much, dtype=torch.uint8, device=GPU)
    assert torch.ones(1, device=GPU).item() == 1, "the error is not left for the next call"


def test_managed_memory_of_a_pool_has_its_pages_at_once() -> None:
    """So it is not free any more, and the free memory says what else fits."""
    need_pools(Policy.MANAGED)
    pool, before = MemoryPool(Policy.MANAGED, GPU), free_bytes()
    with pool.allocating():
        values = torch.empty(512 * MB, dtype=torch.uint8, device=GPU)
    assert torch.cuda.mem_get_info(GPU)[0] <= before - 500 * MB
    assert not values.any(), "nobody but the allocator has written there"


@pytest.mark.parametrize("policy", POOLED_POLICIES)
def test_graph_lies_in_memory_of_the_policy(policy: Policy) -> None:
    need_pools(policy)
    pool = MemoryPool(policy, GPU)
    with pool.allocating():
        values = torch.ones(MB, device=GPU)
    recorded = capture(lambda: (values + 1) * 2, Stream(GPU), pool.graph_pool())
    values.fill_(4)
    recorded.launch()
    torch.cuda.synchronize()
    assert kind_of(recorded.results) is policy
    assert recorded.results.eq(10).all().item()
    assert recorded.bytes >= 4 * MB


@pytest.mark.parametrize("policy", POOLED_POLICIES)
def test_threads_allocate_and_free_at_once(policy: Policy) -> None:
    """The allocators never wait for the interpreter, which other threads hold while they wait for torch's allocator."""
    need_pools(policy)
    pools = [MemoryPool(policy, GPU) for _ in range(4)]
    failures: list[Exception] = []

    def work(pool: MemoryPool, first: int) -> None:
        try:
            for number in range(30):
                with pool.allocating():
                    values = torch.full((MB * (1 + (first + number) % 5),), 1.0, device=GPU)
                assert kind_of(values) is policy
                assert pool.bytes > 0
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(pool, index), daemon=True) for index, pool in enumerate(pools)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    assert failures == []


@pytest.mark.parametrize("policy", POOLED_POLICIES)
def test_process_ends_with_memory_in_use(policy: Policy) -> None:
    need_pools(policy)
    script = (
        "import torch\n"
        "from split_infer_ros.buffers.memory_pool import MemoryPool\n"
        "from split_infer_ros.buffers.policy import Policy\n"
        f"pool = MemoryPool({policy}, torch.device('cuda', 0))\n"
        "with pool.allocating():\n"
        "    values = torch.ones(1000, device='cuda:0')\n"
        "print(values.sum().item())\n"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=HERE, capture_output=True, text=True, timeout=LONG_S)
    assert (run.returncode, run.stdout.strip()) == (0, "1000.0"), run.stderr


@pytest.mark.skipif(SANITIZED, reason="the sanitizer's records keep tensors")
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_policy_covers_all_memory_of_a_model(policy: Policy, graphs: bool, shares_memory: None) -> None:
    need_pools(policy)
    entry, module = build_model(ModelSpec("shapes", "default"))
    model = SplitModel(TorchNetwork(entry, module)).placed(GPU)
    settings = replace(SETTINGS, memory_policy=policy.value, cuda_graphs=graphs)
    with running(settings, model=model) as (pipeline, scores):
        weights = state_of(model.backbone(SETTINGS.split_point))
        assert weights
        assert {kind_of(tensor) for tensor in weights.values()} == {policy}
        made = kinds_of_images(pipeline.backbone.plan.preprocessor)
        pipeline.feed(map(picture, range(8)))
        pipeline.finish()
        assert set(made) == {policy}
        recorded = pipeline.backbone.plan.graphs
        if graphs:
            assert recorded is not None
            assert kind_of(recorded.input_of(0).images) is policy
            assert recorded.bytes > 0
        report = pipeline.backbone.report(0.0)
        assert report.model_bytes >= sum(tensor.nbytes for tensor in weights.values())
        host_bytes = model.network.host_weight_bytes(model.split_point(SETTINGS.split_point))
        assert (host_bytes > 0) == (policy is Policy.DEVICE), "two copies of the weights under device alone"
    assert sorted(scores) == list(range(8))
    check_scores(scores)


def kinds_of_images(preprocessor: object) -> list[Policy]:
    """Returns a list that gets the kind of memory of each batch that is pre-processed from now on."""
    kinds: list[Policy] = []
    load: Callable[..., object] = preprocessor.load  # type: ignore[attr-defined]

    def noted(*arguments: object) -> object:
        loaded = load(*arguments)
        kinds.append(kind_of(loaded.images))  # type: ignore[attr-defined]
        return loaded

    preprocessor.load = noted  # type: ignore[attr-defined]
    return kinds


def test_switchable_memory_serves_each_policy() -> None:
    for policy in (Policy.MANAGED, Policy.PINNED):
        need(policy)
    memory = allocate_at(Place(Policy.DEVICE, GPU, switchable=True), MB)
    assert isinstance(memory, SwitchableMemory)
    assert memory.bytes == 2 * MB
    stream = Stream(GPU)
    for number, policy in enumerate((Policy.DEVICE, Policy.MANAGED, Policy.PINNED, Policy.DEVICE, Policy.MANAGED)):
        found = memory.with_policy(policy)
        assert found is not None
        with stream.work("test"):
            found.give_to_device()
            found.device.fill_(number + 1)
            if found.needs_copy:
                found.host.copy_(found.device, non_blocking=True)
            found.give_to_host()
        stream.fence().wait()
        assert found.host.eq(number + 1).all()
