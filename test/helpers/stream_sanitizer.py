"""Makes PyTorch's stream sanitizer work with several threads and with CUDA graphs.

The sanitizer reports accesses of different streams to the same memory that nothing orders.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


def check_every_thread(patch: pytest.MonkeyPatch) -> None:
    """Lets the sanitizer check the operations of all threads that start from now on, until ``patch`` is undone.

    Without this function, it checks only the thread that imported torch, but other threads do the work. The function
    also tells the sanitizer about two waits that it does not see:

    - It takes recorded operations for operations that run. The end of a recording therefore counts as a wait for them.
    - An event that was queried and has passed counts as waited for.

    The sanitizer does not see launches of graphs. If the results of a graph are read too early, or its inputs are
    written too early, nothing is reported.
    """
    from torch.cuda import _sanitizer  # only here: its import has CUDA's calls traced

    dispatch, lock = _sanitizer.cuda_sanitizer.dispatch, threading.RLock()
    run, end = threading.Thread.run, torch.cuda.CUDAGraph.capture_end
    has_passed = torch.cuda.Event.query

    class Sanitized(TorchDispatchMode):
        """Passes the operations of a thread on to the sanitizer of the process."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return dispatch.__torch_dispatch__(func, types, args, kwargs)

    def run_sanitized(thread: threading.Thread) -> None:
        with Sanitized():
            run(thread)

    def end_recording(graph: torch.cuda.CUDAGraph) -> None:
        try:
            end(graph)
        finally:
            dispatch.event_handler._handle_stream_synchronization(torch.cuda.current_stream().cuda_stream)

    def ask(event: torch.cuda.Event) -> bool:
        passed = bool(has_passed(event))
        if passed:
            dispatch.event_handler._handle_event_synchronization(event.cuda_event)
        return passed

    def locked(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any) -> Any:
            with lock:
                return method(*args)

        return call

    patch.setattr(threading.Thread, "run", run_sanitized)
    patch.setattr(torch.cuda.CUDAGraph, "capture_end", end_recording)
    patch.setattr(torch.cuda.Event, "query", ask)
    # An operation is counted first, and its access is noted later, under the count of that moment.
    patch.setattr(
        _sanitizer.EventHandler, "_handle_kernel_launch", locked(_sanitizer.EventHandler._handle_kernel_launch)
    )
    for name, method in list(vars(_sanitizer.StreamSynchronizations).items()):  # some iterate over what others extend
        if callable(method):
            patch.setattr(_sanitizer.StreamSynchronizations, name, locked(method))
