"""CUDA graphs: work that is recorded once and then launched as a whole.

While one thread records, no thread may synchronise the whole device: CUDA would refuse that and spoil the recording.
Therefore, while one thread records, device-wide synchronisation, frees of GPU memory and emptying torch's cache are
delayed in the whole process.

torch is imported only by functions that use a GPU.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillInUse
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from split_infer_ros.errors import SplitInferError
from split_infer_ros.runtime.cuda import FREES
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.runtime.torch_pools import keeping_pools, once_unused

if TYPE_CHECKING:
    import torch

Results = TypeVar("Results")
PoolId = Any  # torch's token of a pool, a pair of numbers

WARM_UPS = 3  # the first runs choose kernels and allocate, which must not be recorded
POOLS_S = 10.0  # how long ``empty_cache`` waits; loading a model into a pool may take this long

# Held while a thread records, or synchronises the device. The lock does not cover Inductor's benchmarking, nor an
# allocator that is short of memory, although both synchronise the device.
_WHOLE_DEVICE = threading.RLock()

# Failed graphs that torch still treats as recording. They are kept for the life of the process, because torch 2.11's
# allocator of page-locked memory asks each of them at every later allocation whether the memory is for it.
_FAILED_GRAPHS: list[torch.cuda.CUDAGraph] = []

_COLLECTOR = threading.Lock()  # guards the next two variables
_num_blocks = 0  # number of ``without_collector`` blocks that threads are inside
_was_enabled = True  # whether the garbage collector was enabled before the first of these blocks
_blocks_of_thread = threading.local()  # depth: in how many of these blocks the thread is


class GraphPool(Protocol):
    """Memory for graphs that never run concurrently."""

    @property
    def id(self) -> PoolId:
        """torch's token of the pool."""


class OwnGraphPool:
    """A new pool for graphs, which torch fills with its usual device memory."""

    def __init__(self) -> None:
        import torch

        self.id: PoolId = torch.cuda.graph_pool_handle()


class CaptureError(SplitInferError):
    """Raised when work cannot be recorded. The work can still run without being recorded."""


class Capture(Generic[Results]):
    """Work of a GPU that was recorded once, and can be launched any number of times.

    Args:
        graph: the graph that holds the work.
        stream: the stream on which the work was recorded. It is kept as long as the graph. cuBLAS has one workspace
            for each stream, which the graph uses. So graphs that run concurrently must be recorded on different
            streams.
        results: what the work returned. Its tensors lie in the graph's memory and are valid until the next launch.
        pool: the pool with the graph's memory.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, stream: Stream, results: Results, pool: GraphPool) -> None:
        self.results = results
        self._graph = graph
        self._stream = stream
        self._pool = pool

    def __del__(self) -> None:
        self._graph.reset()  # torch may end the process if a pool goes before the graphs that use it

    def launch(self) -> None:
        """Launches the work on the current stream."""
        self._graph.replay()

    @property
    def bytes(self) -> int:
        """Bytes of the device's memory in the graph's pool, for all graphs that share the pool."""
        import torch

        pool = tuple(self._graph.pool())
        return sum(
            segment["total_size"]
            for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
            if tuple(segment["segment_pool_id"]) == pool
        )


def capture(
    run: Callable[[], Results], stream: Stream, pool: GraphPool | None = None, *, warm_ups: int = WARM_UPS
) -> Capture[Results]:
    """Records the work that ``run`` gives to the device.

    Args:
        run: does the same work at each call, on the same memory. It is called ``warm_ups`` + 1 times.
        stream: the stream on which the work is recorded. No other thread may record there at the same time.
        pool: the graph's memory; None: a new pool. Graphs that never run concurrently can share a pool. After a
            ``CaptureError``, nothing else can be recorded in that pool.
        warm_ups: how often the work runs before it is recorded. 0 is enough for work that was recorded on this stream
            before, on other memory.

    Raises:
        torch.OutOfMemoryError: the device has no room for the results.
        CaptureError: the work cannot be recorded. The device works as before.
        Exception: any error that ``run`` raises in a warm-up.
    """
    import torch

    if warm_ups:
        with _WHOLE_DEVICE:  # compiled work is benchmarked at its first runs, which synchronises the device
            with stream.work("warm up"):
                for _ in range(warm_ups):
                    run()
            stream.fence().wait()
    pool = pool or OwnGraphPool()
    graph = torch.cuda.CUDAGraph()
    with _WHOLE_DEVICE, without_collector(may_skip=not warm_ups), keeping_pools(), FREES.holding():
        try:
            if warm_ups:
                torch.cuda.empty_cache()  # a graph's pool cannot use the memory that warm-ups and garbage leave
            # torch.cuda.graph would also synchronise the device, and would do both at every recording
            with stream.work("record"):
                graph.capture_begin(pool.id, capture_error_mode="thread_local")  # other threads may use the GPU
                try:
                    results = run()
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            _leave_recording(graph, stream.device, pool.id)
            # the end of the capture also raises, and its error hides the first one
            shortage = next((e for e in (error, error.__context__) if isinstance(e, torch.OutOfMemoryError)), None)
            if shortage is None:
                raise CaptureError(f"The work cannot be recorded as a CUDA graph ({error}).") from error
            try:
                raise shortage from None
            finally:
                del shortage  # it refers to this frame, and would keep the graph until the garbage collector runs
    return Capture(graph, stream, results, pool)


def is_recording(device: Device) -> bool:
    """Returns whether the calling thread records its work on a device; False on a CPU."""
    if device.type != "cuda":
        return False
    import torch

    return torch.cuda.is_current_stream_capturing()


def synchronize_device(device: Device) -> None:
    """Waits until the work of all streams of a device is done. On a CPU, returns at once."""
    if device.type == "cuda":
        import torch

        with _WHOLE_DEVICE:
            torch.cuda.synchronize(device)


def empty_cache() -> None:
    """Gives unused memory of the GPU back, including memory of unreachable cycles.

    torch gives no memory back while a thread allocates from a pool or records a graph. So this function waits until no
    thread does so, for at most ``POOLS_S`` seconds. After that, the last of these threads gives the memory back.
    """
    gc.collect()
    if "torch" not in sys.modules:  # then this process has no memory of a GPU
        return
    import torch

    emptied: Future[None] = Future()

    def empty() -> None:
        try:
            torch.cuda.empty_cache()
            emptied.set_result(None)
        except RuntimeError as error:  # raised on the thread that waits for the result
            emptied.set_exception(error)

    once_unused(empty)
    with suppress(StillInUse):
        emptied.result(POOLS_S)


@contextmanager
def without_collector(may_skip: bool = False) -> Iterator[None]:
    """Collects garbage now, and keeps Python from collecting it on any thread inside the block.

    Freeing a graph would spoil a recording. A collection takes a tenth of a second or more, so a caller that makes
    several recordings makes them inside one block.

    Args:
        may_skip: whether to skip the first collection if this thread is already inside such a block.
    """
    global _num_blocks, _was_enabled
    depth = getattr(_blocks_of_thread, "depth", 0)
    if not (may_skip and depth):
        gc.collect()
    with _COLLECTOR:
        if not _num_blocks:
            _was_enabled = gc.isenabled()
        _num_blocks += 1
        gc.disable()
    _blocks_of_thread.depth = depth + 1
    try:
        yield
    finally:
        _blocks_of_thread.depth = depth
        with _COLLECTOR:
            _num_blocks -= 1
            if _was_enabled and not _num_blocks:
                gc.enable()


def _leave_recording(graph: torch.cuda.CUDAGraph, device: Device, pool: PoolId) -> None:
    """Makes torch end a recording that failed.

    torch 2.11 does not end it by itself if the end of the capture raises. Its allocator would stay in the graph's pool,
    and ``empty_cache`` would do nothing from then on. Its random generator would refuse to draw. The allocator of
    page-locked memory cannot be made to leave the recording, so the graph that it asks is kept.
    """
    import torch

    with suppress(RuntimeError):  # torch ended the recording itself: the capture ended well, or torch is newer
        torch._C._cuda_endAllocateToPool(device.index, pool)
        _FAILED_GRAPHS.append(graph)
        torch._C._cuda_releasePool(device.index, pool)
    generator = torch.cuda.default_generators[device.index]
    generator.graphsafe_set_state(generator.clone_state())  # the same numbers, in a state that is not recording
