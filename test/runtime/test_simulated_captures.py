"""The simulated GPU's graphs: addresses are fixed when recorded, and a forbidden call ends a recording."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from simulated_gpu import CudaError, Gpu
from simulated_gpu.gpu import RELAXED

from split_infer_ros.buffers.memory_allocation import allocate
from split_infer_ros.buffers.policy import Policy

GPU = torch.device("cuda", 0)


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            yield
        finally:
            graph.capture_end()


def recorded(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with recording(graph):
        run()
    return graph


def test_a_replay_uses_the_recorded_addresses(gpu: Gpu) -> None:
    source = torch.zeros(4, device=GPU)
    results: list[torch.Tensor] = []
    graph = recorded(lambda: results.append((source + 1) * 3))
    for value in (1.0, 4.0):
        source.fill_(value)
        graph.replay()
        assert results[0].tolist() == [3 * (value + 1)] * 4


def test_a_replay_that_touches_freed_memory_is_reported(gpu: Gpu) -> None:
    sources = [torch.zeros(4, device=GPU)]
    graph = recorded(lambda: sources[0].add_(1))
    sources.clear()
    with pytest.raises(CudaError, match="freed since"):
        graph.replay()
    gpu.faults.clear()


def test_an_unordered_replay_races(gpu: Gpu) -> None:
    source = torch.zeros(4, device=GPU)
    graph = recorded(lambda: source.add_(1))
    source.fill_(2)
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.replay()
    assert len(gpu.races) == 1
    gpu.races.clear()


def pinned_garbage() -> None:
    memory = allocate(Policy.PINNED, 64, GPU)
    del memory


def earlier_event() -> torch.cuda.Event:
    """Returns an event that is no part of the recording."""
    return torch.cuda.default_stream().record_event()


def forget(gpu: Gpu) -> None:
    """Memory that could not be freed during a recording is lost."""
    for region in gpu.memory.regions():
        gpu.memory.remove(region)


FORBIDDEN: dict[str, Callable[[torch.Tensor], object]] = {
    "the whole device was synchronised": lambda values: torch.cuda.synchronize(),
    "a copy that the host waits for": lambda values: values.cpu(),
    "a copy from memory that is not page-locked": lambda values: values.copy_(torch.ones(4), non_blocking=True),
    "waits for values": lambda values: values.nonzero(),
    "a stream that is being recorded was synchronised": lambda values: torch.cuda.current_stream().synchronize(),
    "memory was freed": lambda values: pinned_garbage(),
    "an event was synchronised": lambda values: earlier_event().synchronize(),
    "an event was queried": lambda values: earlier_event().query(),
    "a stream was synchronised": lambda values: torch.cuda.default_stream().synchronize(),
    "a stream was queried": lambda values: torch.cuda.default_stream().query(),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_a_forbidden_call_ends_a_recording(what: str, gpu: Gpu) -> None:
    values = torch.zeros(4, device=GPU)

    def run() -> None:
        values.add_(1)
        FORBIDDEN[what](values)

    with pytest.raises(CudaError, match="previous error during capture.*" + what):
        recorded(run)
    forget(gpu)


def test_another_threads_synchronisation_ends_a_recording(gpu: Gpu) -> None:
    values, errors = torch.zeros(4, device=GPU), []

    def synchronise() -> None:
        try:
            torch.cuda.synchronize()
        except CudaError as error:
            errors.append(str(error))

    def run() -> None:
        values.add_(1)
        thread = threading.Thread(target=synchronise)
        thread.start()
        thread.join()

    with pytest.raises(CudaError, match="the whole device was synchronised"):
        recorded(run)
    assert "900" in errors[0]


def test_another_threads_free_ends_a_recording(gpu: Gpu) -> None:
    values = torch.zeros(4, device=GPU)

    def run() -> None:
        values.add_(1)
        thread = threading.Thread(target=pinned_garbage)
        thread.start()
        thread.join()

    with pytest.raises(CudaError, match="memory was freed"):
        recorded(run)
    forget(gpu)


def test_relaxed_rules_allow_what_a_recording_forbids(gpu: Gpu) -> None:
    values = torch.zeros(4, device=GPU)

    def run() -> None:
        values.add_(1)
        gpu.capture_mode_of_thread = RELAXED
        pinned_garbage()
        torch.cuda.default_stream().synchronize()
        gpu.capture_mode_of_thread = 0

    recorded(run).replay()
    assert values.tolist() == [1.0] * 4


def test_garbage_is_collected_inside_of_a_recording(gpu: Gpu) -> None:
    values = torch.zeros(4, device=GPU)

    def run() -> None:
        cycle: list[object] = [allocate(Policy.PINNED, 64, GPU)]
        cycle.append(cycle)
        del cycle
        values.add_(1)
        values.add_(1)

    with pytest.raises(CudaError, match="memory was freed"):
        recorded(run)
    forget(gpu)


def test_a_fork_that_is_not_joined_ends_a_recording(gpu: Gpu) -> None:
    values, other = torch.zeros(4, device=GPU), torch.cuda.Stream()

    def run() -> None:
        values.add_(1)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            values.add_(1)

    with pytest.raises(CudaError, match="was not joined"):
        recorded(run)


def test_branches_of_a_graph_that_nothing_orders_race(gpu: Gpu) -> None:
    values, other = torch.zeros(4, device=GPU), torch.cuda.Stream()

    def run() -> None:
        origin = torch.cuda.current_stream()
        values.add_(1)
        other.wait_stream(origin)
        with torch.cuda.stream(other):
            values.add_(1)
        values.mul_(2)
        origin.wait_stream(other)

    recorded(run).replay()
    assert len(gpu.races) == 1
    gpu.races.clear()


def test_other_threads_work_on_a_recorded_stream_is_recorded(gpu: Gpu) -> None:
    values, others = torch.zeros(4, device=GPU), torch.zeros(4, device=GPU)

    def run() -> None:
        values.add_(1)
        stream = torch.cuda.current_stream()

        def work() -> None:
            with torch.cuda.stream(stream):
                others.add_(1)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    graph = recorded(run)
    assert others.tolist() == [0.0] * 4
    graph.replay()
    assert others.tolist() == [1.0] * 4


def test_a_failed_recording_leaves_the_allocator_open(gpu: Gpu) -> None:
    gpu.fail_captures = 1
    values, pool = torch.zeros(4, device=GPU), torch.cuda.graph_pool_handle()
    torch.empty(1 << 20, device=GPU)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(CudaError), recording(graph, pool):
        values.add_(1)
    torch.empty(1 << 20, device=GPU)
    before = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before
    torch._C._cuda_endAllocateToPool(0, pool)
    torch._C._cuda_releasePool(0, pool)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < before


def test_a_graphs_memory_is_its_own_until_it_goes(gpu: Gpu) -> None:
    results: list[torch.Tensor] = []
    graph = recorded(lambda: results.append(torch.ones(1000, device=GPU)))
    pool = graph.pool()
    assert (
        sum(found["total_size"] for found in torch.cuda.memory_snapshot() if found["segment_pool_id"] == pool) == 4096
    )
    results.clear()
    torch.cuda.empty_cache()
    assert any(found["segment_pool_id"] == pool for found in torch.cuda.memory_snapshot())
    del graph
    torch.cuda.empty_cache()
    assert torch.cuda.memory_snapshot() == []
