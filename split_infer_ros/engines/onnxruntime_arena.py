"""Memory for activations that all sessions of ONNX Runtime in a process share."""

from __future__ import annotations

import re
import threading
import weakref
from functools import cache
from typing import Any

AS_REQUESTED = 1  # ONNX Runtime's number for growing by what is needed; larger pieces are rarely free as a whole
MIN_VERSION = (1, 21)  # with some earlier ones, there is no arena on ARM, and shrinking it fails
SHRINKING_RUNS = 3  # after a session was dropped; the first of them may come before its memory is free


class SharedArena:
    """An arena from which sessions on a CPU take memory for activations. ``shared_arena`` returns the process's own.

    A session's own arena keeps what its largest run needed. Most sessions are idle at any time: those of other models,
    of other numbers of threads, and of choices that are only tried. Sharing does not change the
    speed of later runs.

    The shared arena outlives its sessions. So after a session was dropped, the next runs of other sessions give what
    nothing uses back to the C library. Runs after that take longer once, because the arena grows again.

    Args:
        runtime: the module ``onnxruntime``, in which the arena is registered.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._counting = threading.Lock()
        self._shrinking_runs = 0
        kinds = runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, runtime.OrtMemType.DEFAULT
        growth = runtime.OrtArenaCfg({"arena_extend_strategy": AS_REQUESTED})
        runtime.create_and_register_allocator(runtime.OrtMemoryInfo("Cpu", *kinds), growth)

    def serve(self, options: Any) -> None:
        """Makes a session that will be made with these ``SessionOptions`` use the arena."""
        options.add_session_config_entry("session.use_env_allocators", "1")

    def watch(self, session: Any) -> None:
        """Notices when a session that uses the arena is dropped."""
        weakref.finalize(session, self._note_dropped).atexit = False

    def run(self, session: Any, binding: Any) -> None:
        """Runs a session with bound inputs and outputs. Raises what the session raises."""
        with self._counting:
            shrinks = self._shrinking_runs > 0
            self._shrinking_runs -= shrinks
        if shrinks:
            options = self._runtime.RunOptions()
            options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
            try:
                session.run_with_iobinding(binding, options)
                return
            except Exception:  # the program has replaced the arena by an allocator that cannot shrink
                pass
        session.run_with_iobinding(binding)

    def _note_dropped(self) -> None:
        self._shrinking_runs = SHRINKING_RUNS  # without the lock, which the collecting thread may hold


@cache
def shared_arena(runtime: Any) -> SharedArena | None:
    """Returns this process's arena; None if this version has none that works everywhere.

    If the program registers an allocator too, ONNX Runtime gives new sessions the one that was registered last.

    Args:
        runtime: the module ``onnxruntime``.
    """
    if release_of(runtime) < MIN_VERSION:
        return None
    try:
        return SharedArena(runtime)
    except Exception:  # some versions register only one. Sessions then have arenas of their own, which takes memory.
        return None


def release_of(runtime: Any) -> tuple[int, int]:
    """Returns the first two numbers of a module's version; zeros if it has another form."""
    match = re.match(r"(\d+)\.(\d+)", str(runtime.__version__))
    return (0, 0) if match is None else (int(match[1]), int(match[2]))
