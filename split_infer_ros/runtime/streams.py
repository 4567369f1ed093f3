"""CUDA streams of our own, and the fences that order them. On a CPU there is nothing to order."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from split_infer_ros.runtime import cuda


class Fence:
    """A point in the work that was given to a stream.

    Args:
        event: recorded there; None on a CPU, where all work before the fence is done already.
    """

    def __init__(self, event: torch.cuda.Event | None = None) -> None:
        self._event = event

    def wait(self) -> None:
        """Returns once all work before this point is done. The work of other streams goes on."""
        if self._event is not None:
            self._event.synchronize()


class Stream:
    """Runs work on one device in the order in which it is given, beside the work of other streams.

    Each stream is leased from the process's own and given back when the object goes. ``torch.cuda.Stream()`` deals out
    32 streams in turn, so that the 33rd would share its order, its allocator's blocks and its captures with the first.

    Args:
        device: with its index where it is a GPU.

    Attributes:
        device: as given.
        is_asynchronous: True where work that was given may not be done yet, and so more can be given meanwhile.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_asynchronous = device.type == "cuda"
        self._stream: torch.cuda.Stream | None = None
        if self.is_asynchronous:
            handle = _lease(device)
            weakref.finalize(self, _idle(device).append, handle).atexit = False
            self._stream = torch.cuda.ExternalStream(handle, device)  # type: ignore[no-untyped-call]

    @contextmanager
    def work(self, name: str) -> Iterator[None]:
        """Gives the operations inside the block to this stream; NVIDIA's profilers show them under ``name``.

        They start after what this thread gave to its current stream, so they may use tensors that were made there.
        For most threads that is the default stream, on which models are loaded: work then waits for these copies, too.
        """
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream), torch.cuda.nvtx.range(name):
            yield

    def fence(self) -> Fence:
        """This point in the stream's work."""
        return Fence() if self._stream is None else _record(self._stream)

    def wait_for(self, fence: Fence) -> None:
        """Work that is given from now on starts after ``fence``, which another stream may have."""
        if self._stream is not None and fence._event is not None:
            self._stream.wait_event(fence._event)

    def copy(self, into: Tensor, source: Tensor) -> None:
        """Copies between host and device. Returns once that is done; the work of other streams goes on."""
        with torch.inference_mode(), self.work("copy"):
            into.copy_(source, non_blocking=True)
        self.fence().wait()


def current_fence(device: torch.device) -> Fence:
    """This point in the work that this thread gives to its current stream."""
    return _record(torch.cuda.current_stream(device))


def _record(stream: torch.cuda.Stream) -> Fence:
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # who waits leaves the core to others
    event.record(stream)
    return Fence(event)


# Streams that nobody holds. One that comes back may still have work; what is given to it then runs after that.
# A deque needs no lock, which a finalizer could meet on the very thread that holds it.
_IDLE: dict[torch.device, deque[int]] = {}


def _idle(device: torch.device) -> deque[int]:
    return _IDLE.setdefault(device, deque())


def _lease(device: torch.device) -> int:
    try:
        return _idle(device).pop()
    except IndexError:
        with torch.cuda.device(device):
            return int(cuda.call("cudaStreamCreateWithFlags", cuda.binding().cudaStreamNonBlocking))
