"""Simulates ``torch.cuda.CUDAGraph``."""

from __future__ import annotations

from simulated_gpu.captures import Capture, Graph, PoolId
from simulated_gpu.clocks import place_of_call
from simulated_gpu.gpu import Gpu


class CudaGraph:
    """Stands in for torch's graph: it can be recorded once, and then replayed."""

    gpu: Gpu

    def __init__(self, keep_graph: bool = False) -> None:
        self._graph: Graph | None = None
        self._capture: Capture | None = None
        self._pool: PoolId | None = None

    def capture_begin(self, pool: PoolId | None = None, capture_error_mode: str = "global") -> None:
        gpu = self.gpu
        with gpu.lock:
            gpu.check()
            gpu.allocator.drain()
            if gpu.current is gpu.default or gpu.current.capture is not None:
                gpu.fault("A recording was begun in a stream that cannot be recorded.")
            self._pool = pool or gpu.new_pool()
            gpu.allocator.users[self._pool] += 1
            self._capture = Capture(gpu.current, self._pool, capture_error_mode)
            gpu.generator_records = True
            gpu.captures.add(self._capture)

    def capture_end(self) -> None:
        gpu, capture = self.gpu, self._capture
        assert capture is not None
        assert self._pool is not None
        with gpu.lock:
            gpu.allocator.drain()
            gpu.captures.remove(capture)
            for queue in capture.tails:
                queue.capture = None
            if capture.unjoined():
                capture.failure = capture.failure or "a stream that was forked was not joined"
            if gpu.fail_captures:
                gpu.fail_captures -= 1
                capture.failure = capture.failure or "it was to fail"
            self._capture = None
            if capture.failure:
                gpu.allocator.left_open.add(self._pool)
                self._pool = None  # who began to use it has to say that it is over
                raise gpu.error(f"operation failed due to a previous error during capture: {capture.failure}")
            self._graph = Graph(gpu, capture)
            gpu.generator_records = False

    def replay(self) -> None:
        gpu = self.gpu
        with gpu.lock:
            gpu.check()
            gpu.allocator.drain()
            if self._graph is None:
                gpu.fault("A graph was replayed that was not recorded.")
            self._graph.replay(gpu.current, place_of_call())

    def pool(self) -> PoolId:
        assert self._pool is not None
        return self._pool

    def reset(self) -> None:
        if self._graph is not None:
            self._destroy()

    def _destroy(self) -> None:
        self._graph = None
        if self._pool is not None:
            self.gpu.allocator.users[self._pool] -= 1
            self._pool = None
        capture = self.gpu.capture_of_this_thread()
        if capture is not None:
            capture.failure = capture.failure or "a graph was destroyed"

    def __del__(self) -> None:
        if self._pool is not None:
            self._destroy()


class Generator:
    """Stands in for torch's generator of random numbers.

    As in torch 2.11, it stays part of a recording that failed at its end.
    """

    gpu: Gpu

    def clone_state(self) -> Generator:
        return self

    def graphsafe_set_state(self, state: Generator) -> None:
        self.gpu.generator_records = False
