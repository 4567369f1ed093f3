"""Every measurement in one append-only file of JSON lines, so that no machine pays twice."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record, RecordError, same

_log = logging.getLogger(__name__)


def default_path() -> Path:
    """``split_infer_ros/tuning.jsonl`` in the user's cache folder (XDG_CACHE_HOME, else ~/.cache)."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = named if named.is_absolute() else Path.home() / ".cache"  # as the XDG specification has it
    return folder / "split_infer_ros" / "tuning.jsonl"


class Database:
    """The file, for any number of processes at once; nothing in it is ever changed, or removed but by ``prune``.

    Args:
        path: of the file; None for the user's own. It need not exist.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = default_path() if path is None else path

    @classmethod
    def named(cls, path: str) -> Database:
        """The one at a path as users write it; the user's own for an empty one."""
        return cls(Path(path).expanduser() if path else None)

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
        found, refused, torn = read_lines(data)
        if torn:
            _log.warning("%s ends in the middle of a record, which is ignored.", self.path)
        for number, reason in refused.items():
            _log.warning("%s, line %d is ignored: %s.", self.path, number, reason)
        return list(found.values())

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

    def prune(self, unwanted: Callable[[Record], bool]) -> int:
        """Remove records for good; lines that are none, which may be a later version's, stay. Returns how many went.

        Raises:
            OSError: the rest cannot be written (a full disk, say); the file is as it was.
        """
        try:
            with _locked(self.path, os.O_RDONLY, fcntl.LOCK_EX) as file, open(file, "rb", closefd=False) as reader:
                lines = reader.read().splitlines(keepends=True)
                kept = [line for line in lines if not _is_unwanted(line, unwanted)]
                if len(kept) < len(lines):
                    self._replace(b"".join(kept))
        except FileNotFoundError:
            return 0
        return len(lines) - len(kept)

    def _replace(self, data: bytes) -> None:
        """Put a new file in the old one's place, whose lock is held: whoever waits for that looks again."""
        with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=self.path.name, delete=False) as new:
            try:
                new.write(data)
                new.flush()
                os.fsync(new.fileno())
                os.fchmod(new.fileno(), self.path.stat().st_mode & 0o777)
                Path(new.name).replace(self.path)
            except OSError:
                Path(new.name).unlink()
                raise


def read_lines(data: bytes) -> tuple[dict[int, Record], dict[int, str], bool]:
    """Records by the number of their line, why other lines are none, and whether the last line was cut off."""
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
    """The record of the lowest median, among those that neither failed nor are uncertain."""
    able = [record for record in records if record.error is None and record.costs and not record.uncertain]
    return min(able, key=lambda record: record.median_s, default=None)


def _is_unwanted(line: bytes, unwanted: Callable[[Record], bool]) -> bool:
    try:
        return unwanted(Record.from_line(line.decode().rstrip("\n")))
    except (RecordError, UnicodeDecodeError):
        return False


@contextlib.contextmanager
def _locked(path: Path, flags: int, lock: int) -> Iterator[int]:
    """The file, opened, under a lock that ends with it; the one of that name, if it was replaced meanwhile."""
    while True:
        file = os.open(path, flags | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, lock)
            if not _is_there(file, path):
                continue
            yield file
            return
        finally:
            os.close(file)


def _is_there(file: int, path: Path) -> bool:
    """True unless the name was given to another file, or taken away, while the lock was waited for."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
