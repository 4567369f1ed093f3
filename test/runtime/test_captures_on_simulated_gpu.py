"""Recording on the simulated GPU: other threads and garbage do not spoil it, and a failure leaves no traces."""

from __future__ import annotations

import gc
import mmap
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from simulated_gpu import CudaError, Gpu
from torch import Tensor

from split_infer_ros.buffers.memory import Memory
from split_infer_ros.buffers.memory_allocation import adopt, allocate
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.runtime.captures import (
    CaptureError,
    capture,
    empty_cache,
    is_recording,
    synchronize_device,
    without_collector,
)
from split_infer_ros.runtime.streams import Stream, current_fence, work_apart
from split_infer_ros.runtime.torch_pools import keeping_pools

pytestmark = pytest.mark.usefixtures("plain_operators")

GPU = torch.device("cuda", 0)
MB = 1 << 20


class Beside:
    """Something that another thread tries to do during a recording."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do
        self._thread: threading.Thread | None = None
        self.errors: list[Exception] = []

    def begin(self) -> None:
        """Starts it, from inside the recording. Returns soon, even if the other thread has to wait."""
        if torch.cuda.is_current_stream_capturing():
            self._thread = threading.Thread(target=self.run)
            self._thread.start()
            self._thread.join(0.2)

    def end(self) -> None:
        assert self._thread is not None
        self._thread.join()
        assert self.errors == []

    def run(self) -> None:
        try:
            self._do()
        except Exception as error:
            self.errors.append(error)


def record_another() -> None:
    values = torch.zeros(4, device=GPU)
    capture(lambda: values + 1, Stream(GPU))


def record_compiled_work() -> None:
    """Records work that is benchmarked at its first run, which synchronises the device."""
    values = torch.zeros(4, device=GPU)

    def run() -> Tensor:
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize(GPU)
        return values + 1

    capture(run, Stream(GPU))


@pytest.mark.parametrize("do", [lambda: synchronize_device(GPU), record_another, record_compiled_work])
def test_other_threads_wait_until_a_recording_is_over(do: Callable[[], object], gpu: Gpu) -> None:
    beside, values = Beside(do), torch.zeros(4, device=GPU)

    def run() -> Tensor:
        beside.begin()
        return values + 1

    recorded = capture(run, Stream(GPU))
    beside.end()
    recorded.launch()
    current_fence(GPU).wait()
    assert recorded.results.tolist() == [1.0] * 4


def test_memory_is_given_back_after_a_recording(gpu: Gpu) -> None:
    """During a recording, torch silently gives no memory back."""
    beside, values = Beside(empty_cache), torch.zeros(4, device=GPU)
    waste = [torch.empty(MB, dtype=torch.uint8, device=GPU)]

    def run() -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            waste.clear()
        beside.begin()
        return values + 1

    recorded = capture(run, Stream(GPU))
    beside.end()
    assert torch.cuda.memory_reserved() < MB
    recorded.launch()


def pinned() -> list[Memory]:
    return [allocate(Policy.PINNED, 64, GPU)]


def managed() -> list[Memory]:
    return [allocate(Policy.MANAGED, 64, GPU)]


def registered() -> list[Memory]:
    return [adopt(Policy.PINNED, memoryview(mmap.mmap(-1, 4096)), GPU)]


def released() -> list[Memory]:
    """Returns memory that its owner gives up before it goes."""

    class Released(list[Memory]):
        def clear(self) -> None:
            for memory in self:
                memory.release()
            super().clear()

    return Released(registered())


@pytest.mark.parametrize("make", [pinned, managed, registered, released])
@pytest.mark.parametrize("same_thread", [True, False])
def test_frees_wait_until_a_recording_is_over(same_thread: bool, make: Callable[[], list[Memory]], gpu: Gpu) -> None:
    """Finalizers free memory, and so do buffers that grow and plans that retire, each on a thread of its own."""
    kept, values = make(), torch.zeros(4, device=GPU)
    beside = Beside(kept.clear)

    def run() -> Tensor:
        if same_thread and torch.cuda.is_current_stream_capturing():
            kept.clear()
        beside.begin()
        return values + 1

    recorded = capture(run, Stream(GPU))
    beside.end()
    assert kept == []
    assert not [region for region in gpu.memory.regions() if region.is_shared]
    recorded.launch()
    current_fence(GPU).wait()
    assert recorded.results.tolist() == [1.0] * 4


def test_memory_is_given_back_once_no_thread_uses_a_pool(gpu: Gpu) -> None:
    """While one does, torch silently gives no memory back."""
    torch.empty(MB, dtype=torch.uint8, device=GPU)
    with keeping_pools(), torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        emptying = threading.Thread(target=empty_cache)
        emptying.start()
        emptying.join(0.2)
        assert torch.cuda.memory_reserved() >= MB
    emptying.join()
    assert torch.cuda.memory_reserved() == 0


def test_error_of_the_cache_comes_to_who_empties_it(gpu: Gpu) -> None:
    errors: list[Exception] = []

    def empty() -> None:
        try:
            empty_cache()
        except CudaError as error:
            errors.append(error)

    with keeping_pools():
        emptying = threading.Thread(target=empty)
        emptying.start()
        emptying.join(0.2)
        gpu.sticky = "an illegal memory access was encountered"
    emptying.join()
    assert "illegal memory access" in str(errors[0])
    gpu.sticky = ""


def test_garbage_does_not_spoil_a_recording(gpu: Gpu) -> None:
    values = torch.zeros(4, device=GPU)

    def run() -> Tensor:
        cycle: list[object] = [allocate(Policy.PINNED, 64, GPU)]
        cycle.append(cycle)
        del cycle  # there for whoever collects between the two operations that follow
        return (values + 1) * 2

    recorded = capture(run, Stream(GPU))
    assert gc.isenabled()
    recorded.launch()
    assert recorded.results.tolist() == [2.0] * 4
    del run
    gc.collect()


def test_several_recordings_collect_garbage_once(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection takes longer than most recordings."""
    collected = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(gc.isenabled()))
    values, stream = torch.zeros(4, device=GPU), Stream(GPU)
    with without_collector():
        for warm_ups in (3, 0, 0, 0):
            capture(lambda: values + 1, stream, warm_ups=warm_ups)
    assert collected == [True, False], "before the first one, and what warm-ups made"
    assert gc.isenabled()


def test_collector_stays_off_until_the_last_thread_is_done(gpu: Gpu) -> None:
    beside = Beside(record_another)
    with without_collector():
        thread = threading.Thread(target=beside.run)
        thread.start()
        thread.join()
        assert beside.errors == []
        assert not gc.isenabled()
    assert gc.isenabled()


def test_graphs_that_are_garbage_do_not_spoil_a_recording(gpu: Gpu) -> None:
    values = torch.zeros(4, device=GPU)
    for _ in range(3):
        recorded = capture(lambda: values + 1, Stream(GPU))
        cycle: list[object] = [recorded]
        cycle.append(cycle)
    recorded.launch()
    assert recorded.results.tolist() == [1.0] * 4


def test_a_recording_that_fails_leaves_the_device_as_it_was(gpu: Gpu) -> None:
    values = torch.zeros(4, device=GPU)

    def run() -> Tensor:
        return torch.ones(MB, dtype=torch.uint8, device=GPU) + values[0].to(torch.uint8)

    gpu.fail_captures = 1
    with pytest.raises(CaptureError, match="cannot be recorded as a CUDA graph"):
        capture(run, Stream(GPU))
    assert gc.isenabled()
    assert not gpu.generator_records
    empty_cache()
    assert torch.cuda.memory_reserved() < MB
    capture(run, Stream(GPU)).launch()
    synchronize_device(GPU)


@pytest.fixture
def graphs(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[object]]:
    """All graphs of torch that are made from now on."""
    made: list[weakref.ref[object]] = []

    def make() -> object:
        graph = graph_class()
        made.append(weakref.ref(graph))
        return graph

    graph_class = torch.cuda.CUDAGraph
    monkeypatch.setattr(torch.cuda, "CUDAGraph", make)
    return made


def test_graph_whose_recording_failed_is_kept(gpu: Gpu, graphs: list[weakref.ref[object]]) -> None:
    """torch asks it at each later allocation of page-locked memory."""
    values = torch.zeros(4, device=GPU)
    gpu.fail_captures = 1
    with pytest.raises(CaptureError):
        capture(lambda: values + 1, Stream(GPU))
    gc.collect()
    assert [graph() is not None for graph in graphs] == [True]


def test_graph_that_found_no_room_is_not_kept(gpu: Gpu, graphs: list[weakref.ref[object]]) -> None:
    """It would keep what was allocated before."""

    def run() -> list[Tensor]:
        fits = torch.empty(MB, dtype=torch.uint8, device=GPU)
        is_recording = torch.cuda.is_current_stream_capturing()
        return [fits, torch.empty(2 * gpu.total if is_recording else 1, dtype=torch.uint8, device=GPU)]

    with pytest.raises(torch.OutOfMemoryError):
        capture(run, Stream(GPU))
    gc.collect()
    assert [graph() is not None for graph in graphs] == [False]
    empty_cache()
    assert torch.cuda.memory_reserved() < MB


def test_a_failed_kernel_is_not_a_failed_recording(gpu: Gpu) -> None:
    values, nowhere = torch.zeros(4, device=GPU), torch.tensor([7], device=GPU)
    with pytest.raises(CudaError, match="device-side assert triggered"):
        capture(lambda: values.index_select(0, nowhere), Stream(GPU))


def test_a_recording_can_use_the_memory_of_garbage(gpu: Gpu) -> None:
    """Garbage of the three runs before the recording takes most of the memory."""
    gpu.total = 10 * MB

    def run() -> Tensor:
        cycle: list[object] = [torch.empty(3 * MB, dtype=torch.uint8, device=GPU)]
        cycle.append(cycle)
        return torch.ones(1, device=GPU)

    capture(run, Stream(GPU)).launch()


def test_a_recording_without_room_says_so(gpu: Gpu) -> None:
    def run() -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            return torch.empty(2 * gpu.total, dtype=torch.uint8, device=GPU)
        return torch.empty(1, device=GPU)

    with pytest.raises(torch.OutOfMemoryError):
        capture(run, Stream(GPU))


def test_a_graph_reports_its_memory(gpu: Gpu) -> None:
    recorded = capture(lambda: torch.ones(1000, device=GPU), Stream(GPU))
    assert recorded.bytes == 4096


def test_sixty_streams_do_not_share(gpu: Gpu) -> None:
    streams = [Stream(GPU) for _ in range(60)]
    queues = set()
    for stream in streams:
        with stream.work("look"):
            queues.add(torch.cuda.current_stream())
    assert len(queues) == 60
    del streams, stream
    Stream(GPU)
    assert gpu.calls.count("cudaStreamCreateWithFlags") == 60, "they are given back"


def test_work_starts_after_the_threads_earlier_work(gpu: Gpu) -> None:
    values = torch.zeros(1000, device=GPU)
    with Stream(GPU).work("adds"):
        values.add_(1)
    synchronize_device(GPU)
    assert values.sum().item() == 1000


def test_work_apart_is_done_and_not_on_the_default_stream(gpu: Gpu) -> None:
    with work_apart(GPU, "load"):
        values = torch.ones(1000).to(GPU)
        values.mul_(3)  # unlike the copy, the host does not wait for it
    assert gpu.default.given == 0
    assert values.sum().item() == 3000, "on the default stream, which waits for nothing"


def test_a_copy_is_done_when_it_returns(gpu: Gpu) -> None:
    memory = allocate(Policy.DEVICE, 64, GPU)
    stream = Stream(GPU)
    for value in (3, 5):
        memory.host.fill_(value)
        stream.copy(memory.device, memory.host)
    memory.host.zero_()
    stream.copy(memory.host, memory.device)
    assert memory.host.tolist() == [5] * 64
    with torch.inference_mode():
        made_there = torch.zeros(64, dtype=torch.uint8, device=GPU)
    stream.copy(made_there, memory.host)  # by a thread that is not in that mode


def test_a_thread_knows_whether_it_records(gpu: Gpu) -> None:
    seen: list[bool] = []
    capture(lambda: seen.append(is_recording(GPU)), Stream(GPU), warm_ups=1)
    assert seen == [False, True]
    assert not is_recording(GPU)


def test_memory_outlives_inference_mode(gpu: Gpu) -> None:
    for policy in (Policy.DEVICE, Policy.PINNED, Policy.MANAGED):
        plain = memoryview(mmap.mmap(-1, 4096))
        with torch.inference_mode():
            made = allocate(policy, 64, GPU), adopt(policy, plain, GPU)
        for memory in made:
            memory.device.fill_(1)
            synchronize_device(GPU)
            memory.host.fill_(2)
            memory.release()
