"""The simulated GPU's streams: work is done late, in any allowed order, and every missing wait is reported."""

from __future__ import annotations

import threading
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_gpu import CudaError, Gpu, simulated

from split_infer_ros.buffers.memory import Memory
from split_infer_ros.buffers.memory_allocation import allocate
from split_infer_ros.buffers.policy import Policy

GPU = torch.device("cuda", 0)


def mapped(nbytes: int = 16) -> Memory:
    return allocate(Policy.PINNED, nbytes, GPU)


def races(gpu: Gpu) -> list[str]:
    """Returns the races, and marks them as checked."""
    found = [str(race) for race in gpu.races]
    gpu.races.clear()
    return found


def test_work_is_not_done_before_a_wait(gpu: Gpu) -> None:
    memory = mapped()
    memory.host.zero_()
    memory.device.fill_(7)
    assert memory.host[0] == 0
    (race,) = races(gpu)
    assert "16 bytes of mapped memory" in race
    assert "the default stream writes them at test_simulated_streams.py" in race
    torch.cuda.current_stream().synchronize()
    assert memory.host[0] == 7


def test_a_missing_wait_between_streams_is_a_race(gpu: Gpu) -> None:
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(one):
        values = torch.ones(4, device=GPU)
    with torch.cuda.stream(two):
        values.add_(1)
    assert len(races(gpu)) == 1


def test_an_event_orders_two_streams(gpu: Gpu) -> None:
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(one):
        values = torch.ones(4, device=GPU)
    two.wait_stream(one)
    with torch.cuda.stream(two):
        values.add_(1)
    two.synchronize()
    assert values.tolist() == [2.0] * 4


@settings(max_examples=10)
@given(seed=st.integers(0, 99))
def test_every_allowed_order_gives_the_same_result(seed: int) -> None:
    with simulated(Gpu(Random(seed).randrange)):
        streams = [torch.cuda.Stream() for _ in range(4)]
        total = torch.zeros(1, device=GPU)
        for step in range(12):
            stream = streams[step % 4]
            stream.wait_stream(streams[(step - 1) % 4] if step else torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                total.mul_(2).add_(1)
        streams[3].synchronize()
        assert total.item() == 2**12 - 1


def test_schedules_of_unordered_work_differ() -> None:
    found = set()
    for seed in range(20):
        with simulated(Gpu(Random(seed).randrange)) as gpu:
            value = torch.zeros(1, device=GPU)
            torch.cuda.synchronize()
            one, two = torch.cuda.Stream(), torch.cuda.Stream()
            with torch.cuda.stream(one):
                value.add_(1)
            with torch.cuda.stream(two):
                value.mul_(3)
            torch.cuda.synchronize()
            found.add(value.item())
            assert races(gpu)
    assert found == {1.0, 3.0}


def test_torchs_thirty_third_stream_is_its_first(gpu: Gpu) -> None:
    streams = [torch.cuda.Stream() for _ in range(33)]
    assert streams[32] == streams[0]
    assert len(set(streams)) == 32


def test_a_destroyed_stream_refuses_work(gpu: Gpu) -> None:
    _, handle = gpu.runtime.cudaStreamCreateWithFlags(1)
    stream = torch.cuda.ExternalStream(handle, GPU)
    gpu.runtime.cudaStreamDestroy(handle)
    with torch.cuda.stream(stream), pytest.raises(CudaError, match="which was destroyed"):
        torch.zeros(1, device=GPU)
    gpu.faults.clear()


@pytest.mark.parametrize("handed", [True, False])
def test_locks_order_the_work_of_threads(handed: bool, gpu: Gpu) -> None:
    memory, lock, written = mapped(), threading.Lock(), []

    def write() -> None:
        memory.host.fill_(3)
        if handed:
            with lock:
                written.append(True)
        else:
            written.append(True)

    thread = threading.Thread(target=write)
    thread.start()
    while not written:
        pass
    with lock:
        doubled = memory.device * 2
    torch.cuda.current_stream().synchronize()
    thread.join()
    assert doubled.tolist() == [6] * 16
    assert len(races(gpu)) == (0 if handed else 1)


def test_a_sticky_error_fails_every_later_call(gpu: Gpu) -> None:
    values = torch.zeros(1, device=GPU)
    gpu.sticky = "an illegal memory access was encountered"
    for call in (values.cpu, torch.cuda.synchronize, lambda: values + 1):
        with pytest.raises(CudaError, match="illegal memory access"):
            call()
    gpu.sticky = ""


def test_inference_tensors_behave_as_real_ones(gpu: Gpu) -> None:
    with torch.inference_mode():
        inside = torch.zeros(8, dtype=torch.uint8, device=GPU)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
        inside.fill_(1)
    for device in ("cpu", GPU):  # what torch does with a view that changes the type, it does on both
        outside = torch.zeros(8, dtype=torch.uint8, device=device)
        with torch.inference_mode():
            partition, retyped = outside[:4], outside.view(torch.float32)
        partition.fill_(1)
        assert retyped.is_inference()
