"""Keeps all measurements in one file of JSON lines, so that nothing is measured twice."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record, RecordError, same
from split_infer_ros.runtime.cache import cache_folder
from split_infer_ros.runtime.files import write_whole
from split_infer_ros.runtime.user_files import user_path

MAX_BYTES = 1 << 28  # a few hundred thousand records

_log = logging.getLogger(__name__)


def default_path() -> Path:
    """Returns the path of ``tuning.jsonl`` in the user's cache folder of this package."""
    return cache_folder() / "tuning.jsonl"


class Database:
    """The file of measurements. Any number of processes may use it at once. Only ``prune`` removes records.

    Args:
        path: the file, which need not exist; None: ``default_path``.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = default_path() if path is None else path

    @classmethod
    def named(cls, path: str) -> Database:
        """Returns the database at a path that a user wrote. An empty path stands for ``default_path``."""
        return cls(user_path(path) if path else None)

    def __repr__(self) -> str:
        return f"Database({str(self.path)!r})"

    def add(self, records: Iterable[Record]) -> None:
        """Appends all records, or none if that fails.

        Raises:
            OSError: the records cannot be written, for example because the disk is full. The file stays as it was.
        """
        data = "".join(f"{record.as_line()}\n" for record in records).encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as file:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                data = b"\n" + data  # the last writer was cut off in the middle of a line
            try:
                written = 0
                while written < len(data):
                    written += os.write(file, data[written:])
            except OSError:
                os.ftruncate(file, size)
                raise

    def keep(self, records: Iterable[Record], what: str) -> None:
        """Appends all records. If that fails, logs a warning and appends none.

        Args:
            records: the records to append.
            what: the words before "not kept" in the warning, with a verb, for example "the profile is".
        """
        try:
            self.add(records)
        except OSError as error:
            _log.warning("%s cannot be written (%s): %s not kept.", self.path, error, what)

    def records(self) -> list[Record]:
        """Returns all records of all machines, oldest first.

        Lines that are not records are left out, and a warning is logged. If the file does not exist or cannot be read,
        there are no records.
        """
        try:
            with _locked(self.path, os.O_RDONLY, fcntl.LOCK_SH) as file, open(file, "rb", closefd=False) as reader:
                _check_size(file)
                data = reader.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            _log.warning("%s cannot be read: %s.", self.path, error)
            return []
        found, refused, torn = read_lines(data)
        if torn:
            _log.warning("%s ends in the middle of a record, which is ignored.", self.path)
        for number, reason in refused.items():
            _log.warning("%s, line %d is ignored: %s.", self.path, number, reason)
        return list(found.values())

    def find(self, key: Key, task: Mapping[str, Any]) -> list[Record]:
        """Returns the records of a task that ``key`` fits, oldest first, with those of failed measurements.

        If the task has records, but only from other machines or versions, the result is empty and a warning is logged.

        Args:
            key: the machine and the versions.
            task: what was measured; see ``Record``.
        """
        of_task = [record for record in self.records() if same(record.task, task)]
        usable = [record for record in of_task if key.fits(record)]
        if of_task and not usable:
            _log.warning(
                "%s has %d records of %s, all of other machines or versions: they are not used.",
                self.path,
                len(of_task),
                " ".join(str(task[part]) for part in ("model", "stage") if part in task),
            )
        return usable

    def prune(self, unwanted: Callable[[Record], bool]) -> int:
        """Removes records permanently. Returns how many were removed.

        Lines that are not records stay, because a later version of the package may be able to read them.

        Args:
            unwanted: called with each record; returns whether to remove it.

        Raises:
            OSError: the file cannot be written, for example because the disk is full. It stays as it was.
        """
        try:
            with _locked(self.path, os.O_RDONLY, fcntl.LOCK_EX) as file, open(file, "rb", closefd=False) as reader:
                _check_size(file)
                lines = reader.read().splitlines(keepends=True)
                kept = [line for line in lines if not _is_unwanted(line, unwanted)]
                if len(kept) < len(lines):
                    write_whole(self.path, b"".join(kept))  # processes that wait for the lock then open the new file
        except FileNotFoundError:
            return 0
        return len(lines) - len(kept)


def read_lines(data: bytes) -> tuple[dict[int, Record], dict[int, str], bool]:
    """Reads the records in the content of a file of records.

    Returns:
        The records, the reasons why other lines are no records, and whether the last line is cut off. Records and
        reasons are found by the number of their line, from 1.
    """
    *lines, torn = data.split(b"\n")
    found: dict[int, Record] = {}
    refused: dict[int, str] = {}
    for number, line in enumerate(lines, 1):
        if line:
            try:
                found[number] = Record.from_line(line.decode())
            except (RecordError, UnicodeDecodeError) as error:
                refused[number] = str(error)
    return found, refused, bool(torn)


def best_of(records: Iterable[Record]) -> Record | None:
    """Returns the record with the lowest median cost; None without any. Failed and uncertain records do not count."""
    candidates = [record for record in records if record.error is None and record.costs and not record.uncertain]
    return min(candidates, key=lambda record: record.median_s, default=None)


def _is_unwanted(line: bytes, unwanted: Callable[[Record], bool]) -> bool:
    try:
        return unwanted(Record.from_line(line.decode().rstrip("\n")))
    except (RecordError, UnicodeDecodeError):
        return False


@contextlib.contextmanager
def _locked(path: Path, flags: int, lock: int) -> Iterator[int]:
    """Opens and locks the file at a path. If the file is replaced meanwhile, opens the new one."""
    while True:
        file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)  # otherwise opening a pipe would wait
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError("it is a pipe, a folder or a device, not a file")
            fcntl.flock(file, lock)
            if not _is_current(file, path):
                continue
            yield file
            return
        finally:
            os.close(file)


def _check_size(file: int) -> None:
    size = os.fstat(file).st_size
    if size > MAX_BYTES:
        raise OSError(f"it has {size:,} bytes, and no database has more than {MAX_BYTES:,}")


def _is_current(file: int, path: Path) -> bool:
    """Returns False if the path now leads to another file, or to none. That can happen while waiting for the lock."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
