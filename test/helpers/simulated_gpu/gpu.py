"""The simulated device: its streams, its memory, the host threads that use it, and what went wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import NoReturn

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from simulated_gpu.allocator import Allocator
from simulated_gpu.captures import Baked, Capture, PoolId, pool_ids
from simulated_gpu.clocks import Actor, Clock, join, place_of_call
from simulated_gpu.findings import CudaError, Findings
from simulated_gpu.memory_map import Region, extent
from simulated_gpu.queues import Choose, Processor, Queue, Work
from simulated_gpu.trees import leaves

TOTAL = 1 << 30
DEALT = 32  # streams that torch.cuda.Stream() deals in turn
CAPTURING = 900  # cudaErrorStreamCaptureUnsupported
RELAXED = 2  # cudaStreamCaptureModeRelaxed


class Gpu(Findings):
    """A simulated GPU. It does no work before somebody waits for the work.

    Args:
        choose: chooses which of several pieces of work is done next; by default at random.
        total: the bytes of device memory.
        absent: CUDA's device attributes that are 0; all others are 1.

    Attributes:
        page_lockable: how many bytes of the host's memory can be page-locked.
        fail_captures: how many of the next recordings fail.
        generator_records: whether the generator of random numbers takes part in a recording, and so refuses others.
        calls: names of the calls into CUDA's run-time API, in order.
        kernels: the operators that were launched, with the dtypes of their tensors. A real GPU loads each at its first
            launch.
    """

    def __init__(self, choose: Choose | None = None, total: int = TOTAL, absent: Sequence[str] = ()) -> None:
        super().__init__()
        self.lock = threading._RLock()  # type: ignore[attr-defined]  # Python's own, whatever stands in for it
        self.device = torch.device("cuda", 0)
        self.total = total
        self.absent = set(absent)
        self.choose = choose or Random(0).randrange
        self.processor = Processor(self.choose, self.kernel_failed)
        self.known: Clock = {}  # what any host thread has waited for
        self.captures: set[Capture] = set()
        self.calls: list[str] = []
        self.kernels: set[tuple[object, ...]] = set()
        self.new_pool = pool_ids()
        self.page_lockable = total
        self._threads = threading.local()
        self._actors: list[Actor] = []
        self._next_handle = 0
        self.default = self.new_queue("the default stream")
        self._dealt = [self.new_queue(f"stream {number}") for number in range(DEALT)]
        self._deal = 0
        self.fail_captures = 0
        self.generator_records = False
        self.allocator = Allocator(self)

    @property
    def free_bytes(self) -> int:
        """The free bytes of the device's memory. If ``pages_come_late``, untouched managed memory takes none."""
        managed = [region for region in self.memory.regions() if region.kind == "managed"]
        taken = sum(region.size for region in managed if region.resident or not self.pages_come_late)
        return self.total - self.allocator.reserved_on_device - taken

    @property
    def managed_bytes(self) -> int:
        """The bytes of all managed memory, touched or not."""
        return sum(region.size for region in self.memory.regions() if region.kind == "managed")

    @property
    def pages_come_late(self) -> bool:
        """Whether managed memory takes pages of the device only once the device touches it."""
        return "cudaDevAttrConcurrentManagedAccess" not in self.absent

    @property
    def page_locked_bytes(self) -> int:
        """The page-locked bytes of the host's memory."""
        regions = self.memory.regions()
        return sum(region.size for region in regions if region.kind in ("mapped", "registered"))

    def new_queue(self, name: str) -> Queue:
        """Makes a new stream."""
        queue = Queue(name, self._next_handle)
        self._next_handle += 1
        self.processor.queues.append(queue)
        return queue

    def deal(self) -> Queue:
        """Returns the next of torch's 32 streams; the thirty-third is the first again."""
        with self.lock:
            self._deal += 1
            return self._dealt[(self._deal - 1) % DEALT]

    def queue_of(self, handle: int) -> Queue:
        """Returns the stream with CUDA's number ``handle``. If there is none, that is a fault."""
        for queue in self.processor.queues:
            if queue.handle == handle:
                return queue
        return self.fault(f"There is no stream {handle}.")

    @property
    def current(self) -> Queue:
        """The stream to which the calling thread gives its work."""
        return getattr(self._threads, "current", self.default)

    @current.setter
    def current(self, queue: Queue) -> None:
        self._threads.current = queue

    @property
    def pool_of_thread(self) -> PoolId | None:
        """The pool from which the calling thread's tensors get memory; None for the common pool."""
        return getattr(self._threads, "pool", None)

    @pool_of_thread.setter
    def pool_of_thread(self, pool: PoolId | None) -> None:
        self._threads.pool = pool

    @property
    def capture_mode_of_thread(self) -> int:
        """The calling thread's capture mode, by CUDA's numbers. With 2 (relaxed), the thread may allocate meanwhile."""
        return getattr(self._threads, "capture_mode", 0)

    @capture_mode_of_thread.setter
    def capture_mode_of_thread(self, mode: int) -> None:
        self._threads.capture_mode = mode

    def host(self) -> Actor:
        """Returns the actor of the calling thread."""
        actor: Actor | None = getattr(self._threads, "actor", None)
        if actor is None:
            known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # None as it begins
            actor = self._threads.actor = Actor(f"thread '{known.name if known else 'new'}'")
            self._actors.append(actor)
        return actor

    def threads(self) -> list[Actor]:
        """Returns the actors of all host threads that have used the GPU."""
        return list(self._actors)

    def is_page_locked(self, plain: Tensor) -> bool:
        """Returns whether a tensor's memory is page-locked: CUDA can then copy from or to it while the host goes on."""
        region = self.memory.find(plain.data_ptr())
        return region is not None and region.kind in ("mapped", "registered")

    def touches_shared(self, tree: object) -> bool:
        """Returns whether any tensor in ``tree`` lies in memory that the device can reach."""
        return any(
            isinstance(each, Tensor) and _has_bytes(each) and self.memory.find(each.data_ptr()) is not None
            for each in leaves(tree)
        )

    def launch(
        self, queue: Queue, run: Callable[[], object], tensors: Sequence[tuple[Tensor, bool]], place: str = ""
    ) -> None:
        """Gives a piece of work to a stream.

        Args:
            queue: the stream.
            run: does the work.
            tensors: the tensors that the work touches, each with True if it is written.
            place: the calling line, for reports; by default found out.
        """
        with self.lock:
            self.check()
            self.allocator.drain()
            place = place or place_of_call()
            if not queue.alive:
                self.fault(f"Work was given to {queue.name}, which was destroyed.")
            touched = [(*self._locate(plain), writes) for plain, writes in tensors if plain.numel()]
            if queue.capture is not None:
                baked = [
                    Baked(region, start, end, writes, region.use, self.allocator.lies_in_graphs(region))
                    for region, start, end, writes in touched
                ]
                queue.capture.add(self, queue, run, baked, place)
                return
            host = self.host()
            queue.follow(host)
            queue.step()
            for region, start, end, writes in touched:
                self.touch(region, start, end, queue, queue.clock, writes, place)
            queue.append(run)
            host.step()

    def touch(self, region: Region, start: int, end: int, actor: Actor, clock: Clock, writes: bool, place: str) -> None:
        """Notes that work of a stream, or of a branch of a graph, touches memory, and reports races.

        The arguments are those of ``MemoryMap.touch``.
        """
        if region.attached is not None and region.attached is not actor:
            owner = region.attached if isinstance(region.attached, str) else region.attached.name  # type: ignore[attr-defined]
            self.fault(f"{actor.name} touches {region.name}, which is attached to {owner}.")
        region.resident = True
        self.memory.touch(region, start, end, actor, clock, writes, place)

    def host_touches(self, plain: Tensor, writes: bool) -> None:
        """Notes that the calling thread touches a tensor on the host. Reports races if the GPU can reach the tensor."""
        if not _has_bytes(plain):
            return
        with self.lock:
            start, end = extent(plain)
            region = self.memory.find(start)
            if region is None:
                return
            host = self.host()
            if region.kind == "managed" and not self.pages_come_late:
                self._check_exclusive(region, host)
            region.resident = False  # the pages go to the host
            first = region.start
            self.memory.touch(region, start - first, end - first, host, host.clock, writes, place_of_call())

    def _check_exclusive(self, region: Region, host: Actor) -> None:
        if region.attached == "host":
            return
        queues = [region.attached] if isinstance(region.attached, Queue) else self.processor.queues
        for queue in queues:
            if queue.last is not None and host.clock.get(queue.number, 0) < queue.epoch:
                self.fault(f"The CPU touches {region.name} while {queue.name} may be at work.")

    def wait(self, work: Work | None, clock: Clock) -> None:
        """Makes the calling thread wait for work. What it does next is ordered after ``clock``."""
        with self.lock:
            self.check()
            self.processor.finish(work)
            self.host().learn(clock)
            join(self.known, clock)

    def wait_for(self, queue: Queue) -> None:
        """Makes the calling thread wait for all work of a stream."""
        with self.lock:
            self.allocator.drain()
            if queue.capture is not None:
                self.invalidate(queue.capture, "a stream that is being recorded was synchronised")
            self.forbid("a stream was synchronised")
            self.wait(queue.last, queue.clock)

    def wait_for_all(self) -> None:
        """Makes the calling thread wait for the whole device. That fails while any thread records."""
        with self.lock:
            self.check()
            self.allocator.drain()
            for capture in self.captures:
                capture.failure = capture.failure or "the whole device was synchronised"
            for capture in self.captures:
                self.invalidate(capture, "the whole device was synchronised")
            self.processor.finish_all()
            for queue in self.processor.queues:
                self.wait(None, queue.clock)

    def capture_of_this_thread(self) -> Capture | None:
        """Returns the recording whose rules the calling thread must follow; None if there is none."""
        if self.capture_mode_of_thread == RELAXED:
            return None
        for capture in self.captures:
            if capture.mode == "global" or (capture.mode == "thread_local" and capture.thread == threading.get_ident()):
                return capture
        return None

    def forbid(self, what: str) -> None:
        """Raises an error, and spoils the recording, if a recording forbids the call ``what`` to this thread."""
        capture = self.capture_of_this_thread()
        if capture is not None:
            self.invalidate(capture, what)

    def invalidate(self, capture: Capture, what: str) -> NoReturn:
        """Spoils a recording, so that it cannot succeed, and raises the reason ``what``."""
        capture.failure = capture.failure or what
        raise CudaError(
            f"CUDA error: operation not permitted when stream is capturing ({CAPTURING}): {what} ({place_of_call()})"
        )

    def _locate(self, plain: Tensor) -> tuple[Region, int, int]:
        start, end = extent(plain)
        region = self.memory.find(start)
        if region is None or end > region.start + region.size:
            self.fault("an illegal memory access was encountered: no such memory.")
        return region, start - region.start, end - region.start


def _has_bytes(tensor: Tensor) -> bool:
    """Returns whether a tensor is on the host and has elements in memory."""
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor)
    return plain and tensor.numel() > 0
