"""CUDA streams, and the fences that order their work. On a CPU, all work is done at once."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from split_infer_ros.runtime import cuda
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.inference import inference_mode

if TYPE_CHECKING:  # a process without a GPU needs no torch here
    import torch
    from torch import Tensor

POLL_S = 50e-6  # about as long as a sleeping thread takes to wake


class Fence:
    """A point in the work of a stream for which a thread or another stream can wait.

    Args:
        event: the event that was recorded at this point; None on a CPU, where all work before the fence is already
            done.
    """

    def __init__(self, event: torch.cuda.Event | None = None) -> None:
        self._event = event

    def wait(self) -> None:
        """Waits until all work before this point is done. The work of other streams goes on.

        A sleeping thread wakes late. So the thread polls for some microseconds before it sleeps.
        """
        if self._event is None:
            return
        end = time.perf_counter() + POLL_S
        while not self._event.query():  # type: ignore[no-untyped-call]
            if time.perf_counter() > end:
                self._event.synchronize()
                return


class Mark:
    """A point in the work of a stream at which the device notes the time.

    Args:
        event: the event that was recorded at this point, with its time.
    """

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        """Waits until all work before this point is done."""
        self._event.synchronize()

    def seconds_until(self, later: Mark) -> float:
        """Returns the seconds from this point to a later one. Both must have been reached."""
        return float(self._event.elapsed_time(later._event)) / 1e3


class Stream:
    """Runs work on one device in the order in which it is given, concurrently with the work of other streams.

    The process keeps its own CUDA streams. An object of this class leases one, and gives it back when the object is
    collected. ``torch.cuda.Stream()`` would give out 32 streams in turn. The 33rd object would then share order, blocks
    of the allocator and captures with the first.

    Args:
        device: a CPU, or a GPU with its index.

    Attributes:
        device: the argument.
        is_asynchronous: True on a GPU, where calls return before their work is done.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.is_asynchronous = device.type == "cuda"
        self._stream: torch.cuda.Stream | None = None
        if self.is_asynchronous:
            import torch

            handle = _lease(device)
            weakref.finalize(self, _idle(device).append, handle).atexit = False
            self._stream = torch.cuda.ExternalStream(handle, device)  # type: ignore[no-untyped-call]

    @contextmanager
    def work(self, name: str) -> Iterator[None]:
        """Gives the operations inside the block to this stream. NVIDIA's profilers show them under ``name``.

        The operations start after the work that this thread gave to its current stream, so they may use tensors that
        were made there. For most threads, the current stream is the default stream, which all threads share. So long
        work does not belong on the default stream; see ``work_apart``.
        """
        if self._stream is None:
            yield
            return
        import torch

        self._stream.wait_stream(torch.cuda.current_stream(self.device.index))
        with torch.cuda.stream(self._stream), torch.cuda.nvtx.range(name):
            yield

    def fence(self) -> Fence:
        """Returns a fence at the present end of the stream's work."""
        return Fence() if self._stream is None else _record(self._stream)

    def wait_for(self, fence: Fence) -> None:
        """Makes later work of this stream start after ``fence``, which may belong to another stream."""
        if self._stream is not None and fence._event is not None:
            self._stream.wait_event(fence._event)

    def copy(self, into: Tensor, source: Tensor) -> None:
        """Copies between host and device, and waits until the copy is done. The work of other streams goes on."""
        with inference_mode(), self.work("copy"):
            into.copy_(source, non_blocking=True)
        self.fence().wait()


@contextmanager
def work_apart(device: Device, name: str) -> Iterator[None]:
    """Gives the operations inside the block to a stream of their own, and waits until they are done.

    On the default stream, these operations would delay the work of all other threads.

    Args:
        device: the device on which the operations run.
        name: the name that NVIDIA's profilers show for the operations.
    """
    stream = Stream(device)
    with stream.work(name):
        yield
    stream.fence().wait()


def current_fence(device: Device) -> Fence:
    """Returns a fence at the present end of the work on this thread's current stream."""
    import torch

    return _record(torch.cuda.current_stream(device))


def current_mark(device: Device) -> Mark:
    """Returns a mark at the present end of the work on this thread's current stream."""
    import torch

    event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return Mark(event)


def _record(stream: torch.cuda.Stream) -> Fence:
    import torch

    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # a waiting thread leaves its core to others
    event.record(stream)
    return Fence(event)


# Streams that nobody leases, by the device's name. A returned stream may still have work; new work runs after that.
# A deque needs no lock. A lock could deadlock, because a finalizer may run on the thread that holds the lock.
_IDLE: dict[str, deque[int]] = {}


def _idle(device: Device) -> deque[int]:
    return _IDLE.setdefault(str(device), deque())


def _lease(device: Device) -> int:
    try:
        return _idle(device).pop()
    except IndexError:
        import torch

        with torch.cuda.device(device):
            return int(cuda.call("cudaStreamCreateWithFlags", cuda.binding().cudaStreamNonBlocking))
