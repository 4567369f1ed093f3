"""Every measurement in one append-only file of JSON lines, so that no machine pays twice."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from split_infer_ros.tuning.key import Key
from split_infer_ros.tuning.record import Record, RecordError, same

_log = logging.getLogger(__name__)


def default_path() -> Path:
    """``split_infer_ros/tuning.jsonl`` in the user's cache folder (XDG_CACHE_HOME, else ~/.cache)."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = named if named.is_absolute() else Path.home() / ".cache"  # as the XDG specification has it
    return folder / "split_infer_ros" / "tuning.jsonl"


class Database:
    """The file, for any number of processes at once; nothing in it is ever changed or removed.

    Args:
        path: of the file; None for the user's own. It need not exist.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = default_path() if path is None else path

    def __repr__(self) -> str:
        return f"Database({str(self.path)!r})"

    def add(self, records: Iterable[Record]) -> None:
        """Append the records, all or none.

        Raises:
            OSError: they cannot be written (a full disk, say); the file is as it was.
        """
        data = "".join(f"{record.as_line()}\n" for record in records).encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as file:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                data = b"\n" + data  # whoever wrote last was cut off
            try:
                written = 0
                while written < len(data):
                    written += os.write(file, data[written:])
            except OSError:
                os.ftruncate(file, size)
                raise

    def keep(self, records: Iterable[Record], what: str) -> None:
        """``add``, for who can go on without: where that fails a warning says so of ``what``, "the profile is", say."""
        try:
            self.add(records)
        except OSError as error:
            _log.warning("%s cannot be written (%s): %s not kept.", self.path, error, what)

    def records(self) -> list[Record]:
        """All records of all machines, oldest first; lines that are none are left out, with a warning."""
        try:
            with _locked(self.path, os.O_RDONLY, fcntl.LOCK_SH) as file, open(file, "rb", closefd=False) as reader:
                data = reader.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            _log.warning("%s cannot be read: %s.", self.path, error)
            return []
        *lines, torn = data.split(b"\n")
        if torn:
            _log.info("%s ends in the middle of a record, which is ignored.", self.path)
        found = []
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                found.append(Record.from_line(line.decode()))
            except (RecordError, UnicodeDecodeError) as error:
                _log.warning("%s, line %d is ignored: %s.", self.path, number, error)
        return found

    def find(self, key: Key, task: Mapping[str, Any]) -> list[Record]:
        """The records of that task, on that target and with those versions, oldest first; failed ones too.

        Where all that is known of the task comes from elsewhere, a warning says so.
        """
        known = [record for record in self.records() if same(record.task, task)]
        own = [record for record in known if key.fits(record)]
        if known and not own:
            _log.warning(
                "%s has %d records of %s, all of other machines or versions: they are not used.",
                *(self.path, len(known), " ".join(str(task[part]) for part in ("model", "stage") if part in task)),
            )
        return own

    def best(self, key: Key, task: Mapping[str, Any]) -> Record | None:
        """Of what ``find`` finds, the record of the lowest median without error; None if there is none."""
        able = [record for record in self.find(key, task) if record.error is None and record.costs]
        return min(able, key=lambda record: record.median_s, default=None)


@contextlib.contextmanager
def _locked(path: Path, flags: int, lock: int) -> Iterator[int]:
    """The file, opened, under a lock that ends with it."""
    file = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, lock)
        yield file
    finally:
        os.close(file)
