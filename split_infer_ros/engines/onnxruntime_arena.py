"""Memory for activations that all sessions of ONNX Runtime in a process share."""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any

AS_REQUESTED = 1  # ONNX Runtime's number for growing by what is needed; larger pieces are rarely free as a whole
SHRINKING_RUNS = 3  # after a session was dropped; the first of them may come before its memory is free


class SharedArena:
    """An arena from which sessions on a CPU take memory for activations. ``shared_arena`` returns the process's own.

    A session's own arena keeps what its largest run needed. Most sessions are idle at any time: those of other models,
    of other numbers of threads, and of choices that are only tried. Sharing does not change the speed.

    The shared arena outlives its sessions. So after a session was dropped, the next runs of other sessions give back
    what nothing uses.

    Args:
        runtime: the module ``onnxruntime``, in which the arena is registered.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
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

    def run_options(self) -> Any | None:
        """Returns the ``RunOptions`` of the next run; None for the usual ones."""
        if self._shrinking_runs <= 0:  # below 0 if two threads counted at once
            return None
        self._shrinking_runs -= 1
        options = self._runtime.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        return options

    def _note_dropped(self) -> None:
        self._shrinking_runs = SHRINKING_RUNS


@cache
def shared_arena(runtime: Any) -> SharedArena | None:
    """Returns this process's arena; None if this version has none, or the program has registered an allocator itself.

    Args:
        runtime: the module ``onnxruntime``.
    """
    try:
        return SharedArena(runtime)
    except Exception:  # sessions then have arenas of their own, which only costs memory
        return None
