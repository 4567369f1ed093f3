"""Watches in which order host threads work: by the locks and queues that they share, and by starts and joins."""

from __future__ import annotations

import _thread
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from simulated_gpu.clocks import Baton

if TYPE_CHECKING:
    from simulated_gpu.gpu import Gpu


class _Passes:
    """A lock that orders whoever takes it after those who released it, until the simulation ends."""

    gpu: Gpu | None  # of the subclass that ``lock_classes`` makes; None after the end
    _lock: Any  # the interpreter's own

    def __init__(self) -> None:
        self._baton = Baton()

    def _take(self) -> None:
        if self.gpu is not None:
            self._baton.take(self.gpu.host())

    def _leave(self) -> None:
        if self.gpu is not None:
            self._baton.leave(self.gpu.host())

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken: bool = self._lock.acquire(blocking, timeout)
        if taken:
            self._take()
        return taken

    def release(self) -> None:
        self._leave()
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()


class _Lock(_Passes):
    def __init__(self) -> None:
        super().__init__()
        self._lock = _thread.allocate_lock()
        self.locked = self._lock.locked


class _ReentrantLock(_Passes):
    def __init__(self) -> None:
        super().__init__()
        self._lock = _thread.RLock()
        self._is_owned = self._lock._is_owned

    def _release_save(self) -> Any:
        self._leave()
        return self._lock._release_save()

    def _acquire_restore(self, state: Any) -> None:
        self._lock._acquire_restore(state)
        self._take()


@contextmanager
def lock_classes(gpu: Gpu) -> Iterator[tuple[type, type]]:
    """Yields substitutes for ``threading.Lock`` and ``threading.RLock``. They order a thread after earlier holders.

    A lock may outlive the simulation, such as that of a module which is imported meanwhile. It then is a plain lock,
    and does not keep the GPU with all its memory.
    """
    classes = type("Lock", (_Lock,), {"gpu": gpu}), type("RLock", (_ReentrantLock,), {"gpu": gpu})
    try:
        yield classes
    finally:
        for each in classes:
            each.gpu = None  # type: ignore[attr-defined]


def starting(gpu: Gpu, start: Callable[[threading.Thread], None], entered: Callable[[], Any]) -> Callable[..., None]:
    """Returns a substitute for ``Thread.start``.

    It orders the new thread after its parent, and runs it inside the context that ``entered`` returns. Threads of tqdm
    are left out: they never end, and would keep the GPU.
    """

    def start_watched(thread: threading.Thread) -> None:
        if type(thread).__module__.startswith("tqdm."):
            start(thread)
            return
        host = gpu.host()
        clock = dict(host.clock)
        host.step()
        run = thread.run

        def run_watched() -> None:
            gpu.host().name = f"thread '{thread.name}'"
            gpu.host().learn(clock)
            try:
                with entered():
                    run()
            finally:
                thread.clock_at_end = dict(gpu.host().clock)  # type: ignore[attr-defined]
                del thread.run

        thread.run = run_watched  # type: ignore[method-assign]
        start(thread)

    return start_watched


def joining(gpu: Gpu, wait: Callable[..., None]) -> Callable[..., None]:
    """Returns a substitute for ``Thread.join``. It orders the caller after the end of the thread."""

    def join_watched(thread: threading.Thread, timeout: float | None = None) -> None:
        wait(thread, timeout)
        if not thread.is_alive():
            gpu.host().learn(getattr(thread, "clock_at_end", {}))

    return join_watched


def remembering(gpu: Gpu, remembered: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a substitute for a cached function. It orders callers after the threads that computed results."""
    baton, guard = Baton(), _thread.allocate_lock()

    @functools.wraps(remembered)
    def call(*args: Any, **kwargs: Any) -> Any:
        misses = remembered.cache_info().misses  # type: ignore[attr-defined]
        found = remembered(*args, **kwargs)
        if remembered.cache_info().misses > misses:  # type: ignore[attr-defined]
            with guard:  # several threads may compute at the same time
                baton.leave(gpu.host())
        else:
            baton.take(gpu.host())
        return found

    call.cache_clear = remembered.cache_clear  # type: ignore[attr-defined]
    return call


class Published:
    """Replaces an attribute that threads read without a lock. A reader is ordered after the threads that wrote it.

    Reading without a lock is safe, because Python's interpreter has a lock of its own.
    """

    def __init__(self, gpu: Gpu, name: str) -> None:
        self._gpu, self._name = gpu, f"_published_{name}"

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        value, clock = owner.__dict__[self._name]
        self._gpu.host().learn(clock)
        return value

    def __set__(self, owner: Any, value: object) -> None:
        host = self._gpu.host()
        _, clock = owner.__dict__.get(self._name, (None, {}))
        owner.__dict__[self._name] = value, {**clock, **{k: max(v, clock.get(k, 0)) for k, v in host.clock.items()}}
        host.step()
