"""PyTorch's stream sanitizer, made fit for several threads and for CUDA graphs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


def check_every_thread(patch: pytest.MonkeyPatch) -> None:
    """Has the sanitizer check the operations of all threads that start from now on, until ``patch`` is undone.

    By itself it checks only the thread that imported torch, and here other threads do the work. It takes operations
    that are recorded for operations that run, so the end of a recording counts as a wait for them. An event that was
    asked and has passed counts as waited for, which the sanitizer does not see either. It does not see launches of
    graphs. A graph's results that are read too early, and inputs that are written too early, therefore go
    unnoticed.
    """
    from torch.cuda import _sanitizer  # only here: its import has CUDA's calls traced

    dispatch, lock = _sanitizer.cuda_sanitizer.dispatch, threading.RLock()
    run, end = threading.Thread.run, torch.cuda.CUDAGraph.capture_end
    has_passed = torch.cuda.Event.query

    class Sanitized(TorchDispatchMode):
        """Hands the operations of a thread to the sanitizer of the process."""

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
