"""A trace of what ran when, for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from split_infer_ros.errors import ConfigurationError

_log = logging.getLogger(__name__)

MOST_BYTES = 500_000_000  # about a day of batches; then it ends, so that no disk is filled


class TraceFile:
    """Writes Chrome's trace event format: a JSON array of events, one a line.

    The closing bracket may be missing, so a file that was cut off can still be opened.

    Args:
        path: of the file; an older one is replaced.

    Raises:
        ConfigurationError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            # a line at a time, so that all but the last line is there whatever happens
            self._file = path.expanduser().open("w", buffering=1, encoding="utf-8")
            self._written = self._file.write("[\n")
        except OSError as error:
            raise ConfigurationError(f"trace '{path}' cannot be written: {error.strerror}.") from error
        self._rows: dict[str, int] = {}
        self._lock = threading.Lock()

    def slice(self, row: str, name: str, start: float, end: float, **facts: Any) -> None:
        """Something lasted from ``start`` to ``end`` (seconds of one clock, any origin); safe from any thread."""
        with self._lock:
            if row not in self._rows:
                self._rows[row] = len(self._rows) + 1
                place = {"pid": 1, "tid": self._rows[row]}
                self._write({"ph": "M", "name": "thread_name", **place, "args": {"name": row}})
                self._write({"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": place["tid"]}})
            times = {"ts": round(1e6 * start, 1), "dur": round(1e6 * (end - start), 1)}
            self._write({"ph": "X", "name": name, "pid": 1, "tid": self._rows[row], **times, "args": facts})

    def slices(self, rows: Mapping[str, tuple[float, float]], name: str, prefix: str = "", **facts: Any) -> None:
        """The same in several rows: the start and end in each; ``prefix`` stands before the rows' names."""
        for row, (start, end) in rows.items():
            self.slice(f"{prefix}{row}", name, start, end, **facts)

    def close(self) -> None:
        """End the file; what comes later is left out."""
        with self._lock:
            if not self._file.closed:
                self._put('{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "pipeline"}}\n]\n')
            self._end()

    def _write(self, event: dict[str, Any]) -> None:
        if not self._file.closed and self._written < MOST_BYTES:
            self._put(json.dumps(event) + ",\n")

    def _put(self, text: str) -> None:
        """Write, or end the file if that cannot be done: whoever is traced goes on."""
        try:
            self._written += self._file.write(text)
        except OSError as error:
            _log.warning("trace '%s' ends here: %s.", self._file.name, error.strerror)
            self._end()

    def _end(self) -> None:
        with suppress(OSError):  # what the disk had no room for is flushed once more, and closed all the same
            self._file.close()
