"""Each kind of memory, on a run-time API of CUDA that is played by the host's own memory."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from fake_cuda import GPU, Runtime, Status

from split_infer_ros.buffers import cuda, memory
from split_infer_ros.buffers.layout import Layout, TensorSpec
from split_infer_ros.buffers.memory import Memory, Place, adopt, allocate
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.buffers.pool import FeaturePool
from split_infer_ros.buffers.shared_pool import SharedPool
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.errors import ConfigurationError

LAYOUT = Layout([TensorSpec("x", (3, 2, 2), torch.float32), TensorSpec("y", (5,), torch.float16)], 4)


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_is_freed_once_and_only_when_nobody_sees_it_any_more(cuda_runtime: Runtime, policy: Policy) -> None:
    made = allocate(policy, 1000, GPU)
    view = made.device[10:20]
    made.host.fill_(3)
    if made.is_one:
        assert made.bytes == 1000
        assert view.tolist() == 10 * [3]
    else:
        assert made.bytes == 2000
        assert made.device.data_ptr() != made.host.data_ptr()
    host = made.host[5:]
    del made, view
    gc.collect()
    assert len(cuda_runtime.live) == 1
    assert host.eq(3).all()
    del host


@pytest.mark.parametrize("policy", [*POLICIES, Policy.HOST])
def test_on_a_cpu_all_are_plain_memory(policy: Policy) -> None:
    made = allocate(policy, 100, torch.device("cpu"))
    assert (made.policy, made.bytes, made.is_one) == (Policy.HOST, 100, True)
    assert made.host.data_ptr() == made.device.data_ptr()
    adopted = adopt(policy, made.host, torch.device("cpu"))
    assert adopted.policy is Policy.HOST
    adopted.let_go()


def test_managed_memory_belongs_to_one_side_at_a_time_where_the_gpu_says_so(cuda_runtime: Runtime) -> None:
    shared = allocate(Policy.MANAGED, 100, GPU)
    shared.give_to_device()
    shared.give_to_host()
    assert [flags for _, flags in cuda_runtime.attached] == [cuda_runtime.cudaMemAttachGlobal]
    cuda_runtime.attached.clear()
    cuda.device_attributes.cache_clear()
    cuda_runtime.attributes["cudaDevAttrConcurrentManagedAccess"] = 0
    exclusive = allocate(Policy.MANAGED, 100, GPU)
    exclusive.give_to_device()
    exclusive.give_to_host()
    assert [flags for _, flags in cuda_runtime.attached] == [2, 4, 2]  # host, single stream, host
    for policy in (Policy.PINNED, Policy.DEVICE):
        allocate(policy, 100, GPU).give_to_device()
    assert len(cuda_runtime.attached) == 3


@pytest.mark.parametrize("policy", POLICIES)
def test_more_than_there_is_is_refused(cuda_runtime: Runtime, policy: Policy) -> None:
    with pytest.raises(cuda.OutOfMemory):
        allocate(policy, (1 << 20) + 1, GPU)
    assert cuda_runtime.calls == {}


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_adopted_is_page_locked_until_it_is_let_go(cuda_runtime: Runtime, policy: Policy) -> None:
    plain = torch.zeros(100, dtype=torch.uint8)
    adopted = adopt(policy, plain, GPU)
    assert adopted.host is plain
    assert list(cuda_runtime.registered) == ([] if policy is Policy.MANAGED else [plain.data_ptr()])
    adopted.let_go()
    assert cuda_runtime.registered == {}
    adopted.let_go()
    again = adopt(policy, plain, GPU)
    del again  # forgotten


def test_an_error_is_told_with_its_call(cuda_runtime: Runtime) -> None:
    cuda_runtime.cudaMemGetInfo = lambda: (Status.cudaErrorInvalidValue,)  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(ConfigurationError, match=r"cudaMemGetInfo failed: cudaErrorInvalidValue\."):
        allocate(Policy.MANAGED, 10, GPU)


def test_without_the_binding_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(cuda.importlib, "import_module", missing)  # type: ignore[attr-defined]
    cuda._runtime.cache_clear()
    with pytest.raises(ConfigurationError, match="pip install cuda-bindings"):
        cuda.device_address(1)
    cuda._runtime.cache_clear()


# Rings


@pytest.mark.parametrize("make", [FeaturePool, SharedPool])
@pytest.mark.parametrize("policy", [Policy.DEVICE, Policy.PINNED])
def test_what_the_device_writes_the_cpu_sees(
    cuda_runtime: Runtime, policy: Policy, make: type[FeaturePool] | type[SharedPool]
) -> None:
    pool = make(LAYOUT, 2, Place(policy, GPU))
    assert pool.memory == {FeaturePool: "", SharedPool: "shared "}[make] + policy.value
    assert pool.bytes == 2 * LAYOUT.slot_bytes * (2 if policy is Policy.DEVICE else 1)
    lease = pool.acquire()
    assert lease is not None
    features = torch.randn(3, 3, 2, 2), torch.randn(3, 5).half()
    pool.slots.write(lease.slot, features)
    assert pool.slots.copies == (policy is Policy.DEVICE)
    if pool.slots.copies:
        pool.slots.fetch(lease.slot, 3)
    for found, expected in zip(pool.views(lease, 3), features, strict=True):
        assert torch.equal(found, expected)
    del found
    pool.close()


@pytest.mark.parametrize("policy", [Policy.DEVICE, Policy.MANAGED])
def test_where_there_is_no_room_pinned_memory_is_taken_and_said(
    cuda_runtime: Runtime, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    real = memory.allocate

    def full(asked: Policy, nbytes: int, device: torch.device) -> Memory:
        if asked is not Policy.PINNED:
            raise cuda.OutOfMemory("CUDA out of memory.")
        return real(asked, nbytes, device)

    monkeypatch.setattr("split_infer_ros.buffers.slot_memory.allocate", full)
    slots = SlotMemory.make(LAYOUT, 2, Place(policy, GPU))
    assert slots.policy is Policy.PINNED
    assert slots.note == (
        f"There is no room for the features by memory_policy {policy.value} (CUDA out of memory.): "
        "pinned is taken in its stead."
    )


@pytest.mark.parametrize("make", [FeaturePool, SharedPool])
@pytest.mark.parametrize("policy", [Policy.DEVICE, Policy.PINNED])
def test_a_ring_for_which_there_is_no_room_at_all_is_refused_and_leaves_nothing(
    cuda_runtime: Runtime, policy: Policy, make: type[FeaturePool] | type[SharedPool]
) -> None:
    cuda_runtime.free = room = LAYOUT.slot_bytes  # for one slot
    sentence = r"A ring of 3 slots of [0-9,]+ bytes cannot be allocated \(cuda\w+ failed.*\): take a smaller batch_size"
    with pytest.raises(ConfigurationError, match=sentence):
        make(LAYOUT, 3, Place(policy, GPU))
    gc.collect()
    assert cuda_runtime.free == room
    cuda_runtime.free = 1 << 20
