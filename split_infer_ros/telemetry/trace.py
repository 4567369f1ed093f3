"""Writes a trace that shows when each stage ran, for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.user_files import user_path

_log = logging.getLogger(__name__)

MAX_BYTES = 500_000_000  # about a day of batches; the trace ends at this size, so that it cannot fill the disk


class TraceFile:
    """Writes Chrome's trace event format: a JSON array with one event a line.

    Viewers accept the array without its closing bracket, so they can open a file that was cut off.

    Args:
        file: a file that is open for writing.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._written = 0
        self._rows: dict[str, int] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path) -> TraceFile:
        """Begins a trace.

        Args:
            path: the path of the file. An existing file is replaced.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        try:
            # line buffering: if the process dies, at most the last line is missing
            file = user_path(path).open("w", buffering=1, encoding="utf-8")
            file.write("[\n")
        except OSError as error:
            raise ConfigurationError(f"trace '{path}' cannot be written: {error.strerror}.") from error
        return cls(file)

    def slice(self, row: str, name: str, start: float, end: float, **facts: Any) -> None:
        """Writes one slice, from any thread.

        Args:
            row: the name of the row that shows the slice, such as a stage.
            name: the name of the slice, such as a batch.
            start: when the slice begins, in seconds of any clock.
            end: when the slice ends, in seconds of the clock of ``start``.
            facts: facts that are shown with the slice.
        """
        with self._lock:
            if row not in self._rows:
                self._rows[row] = len(self._rows) + 1
                place = {"pid": 1, "tid": self._rows[row]}
                self._write({"ph": "M", "name": "thread_name", **place, "args": {"name": row}})
                self._write({"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": place["tid"]}})
            times = {"ts": round(1e6 * start, 1), "dur": round(1e6 * (end - start), 1)}
            self._write({"ph": "X", "name": name, "pid": 1, "tid": self._rows[row], **times, "args": facts})

    def slices(self, rows: Mapping[str, tuple[float, float]], name: str, prefix: str = "", **facts: Any) -> None:
        """Writes slices with the same name in several rows.

        Args:
            rows: start and end of the slice in each row, in seconds, by the row's name.
            name: the name of the slices.
            prefix: text in front of the rows' names.
            facts: facts that are shown with each slice.
        """
        for row, (start, end) in rows.items():
            self.slice(f"{prefix}{row}", name, start, end, **facts)

    def close(self) -> None:
        """Completes and closes the file. Slices that are written later are ignored."""
        with self._lock:
            if not self._file.closed:
                self._put('{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "pipeline"}}\n]\n')
            self._close_file()

    def _write(self, event: dict[str, Any]) -> None:
        if not self._file.closed and self._written < MAX_BYTES:
            self._put(json.dumps(event) + ",\n")

    def _put(self, text: str) -> None:
        """Writes text. If that fails, the trace ends and the pipeline goes on."""
        try:
            self._written += self._file.write(text)
        except OSError as error:
            _log.warning("trace '%s' ends here: %s.", self._file.name, error.strerror)
            self._close_file()

    def _close_file(self) -> None:
        with suppress(OSError):  # close() flushes, which fails if the disk is full; the file is closed in any case
            self._file.close()
