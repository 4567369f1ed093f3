"""Memory in which frames go to the process of a user's task: a file in memory, which grows as frames need it."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from split_infer_ros.buffers.host_arrays import ALIGNMENT, Array

_SHARED = Path("/dev/shm")  # without it, the file is in the folder for temporary files


class FrameFile:
    """A file that two processes map. One writes arrays into it, and the other reads them by their descriptions.

    Args:
        descriptor: the open file.
        path: its path; empty once it has none.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        self.path = path
        self._descriptor = descriptor
        self._mapped: mmap.mmap | None = None

    @classmethod
    def create(cls) -> FrameFile:
        """Creates an empty file. Call ``hide`` once the other process has opened it."""
        return cls(*tempfile.mkstemp(prefix="split_infer_ros_frames_", dir=_SHARED if _SHARED.is_dir() else None))

    @classmethod
    def open(cls, path: str) -> FrameFile:
        """Opens the file that another process created."""
        return cls(os.open(path, os.O_RDWR), "")

    def hide(self) -> None:
        """Removes the file's name, so that nothing is left if both processes are killed."""
        if self.path:
            Path(self.path).unlink(missing_ok=True)
            self.path = ""

    def write(self, arrays: Sequence[Array]) -> list[dict[str, Any]]:
        """Writes arrays one after the other, over those from before. Returns their descriptions, for ``read``.

        Raises:
            OSError: there is no room for them.
        """
        offsets, size = [], 0
        for array in arrays:
            offsets.append(size)
            size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        memory = self._of_size(max(size, 1))
        facts = []
        for array, offset in zip(arrays, offsets, strict=True):
            fact = {"offset": offset, "shape": list(array.shape), "dtype": array.dtype.name}
            np.copyto(_view(memory, fact), array)
            facts.append(fact)
        return facts

    def read(self, facts: Sequence[Mapping[str, Any]]) -> list[Array]:
        """Returns the arrays that the other process described. They are valid until it writes again."""
        memory = self._of_size(os.fstat(self._descriptor).st_size)
        return [_view(memory, fact) for fact in facts]

    def close(self) -> None:
        """Removes the file. Views of it stay valid. It may be called again."""
        self.hide()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _of_size(self, size: int) -> mmap.mmap:
        """Returns the mapped file, which has at least ``size`` bytes."""
        if self._mapped is None or len(self._mapped) < size:
            if os.fstat(self._descriptor).st_size < size:
                os.posix_fallocate(self._descriptor, 0, size)  # without room, writing would end this process
            self._mapped = mmap.mmap(self._descriptor, size)
        return self._mapped


def _view(memory: mmap.mmap, fact: Mapping[str, Any]) -> Array:
    seen: Array = np.ndarray(tuple(fact["shape"]), np.dtype(fact["dtype"]), memory, fact["offset"])
    return seen
