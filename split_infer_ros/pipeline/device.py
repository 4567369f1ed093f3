"""The one place that knows of CUDA streams; on a CPU there is nothing to order and nothing to wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Mark:
    """A point in the work that was given to a queue."""

    def __init__(self, event: torch.cuda.Event | None = None) -> None:
        self._event = event

    def wait(self) -> None:
        """Return once all work before this point is done; that of other queues goes on."""
        if self._event is not None:
            self._event.synchronize()


class DeviceQueue:
    """Work for one device in the order in which it is given, beside that of other queues.

    Attributes:
        runs_behind: True where work that was given may not be done yet, and so more can be given meanwhile.
    """

    def __init__(self, device: torch.device) -> None:
        self.runs_behind = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self.runs_behind else None  # type: ignore[no-untyped-call]

    @contextmanager
    def work(self, name: str) -> Iterator[None]:
        """Operations inside the block go to this queue, and are seen by NVIDIA's profilers under that name."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream), torch.cuda.nvtx.range(name):
            yield

    def mark(self) -> Mark:
        """This point."""
        if self._stream is None:
            return Mark()
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return Mark(event)

    def copy(self, into: Tensor, source: Tensor) -> None:
        """Copy between host and device; returns once that is done, and other queues' work goes on."""
        with self.work("copy"):
            into.copy_(source, non_blocking=True)
        self.mark().wait()

    def follow(self, mark: Mark) -> None:
        """What is given from now on starts after that point of another queue."""
        if self._stream is not None and mark._event is not None:
            self._stream.wait_event(mark._event)


def mark_here(device: torch.device) -> Mark:
    """This point in the work of whichever queue is being given work by this thread."""
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return Mark(event)
