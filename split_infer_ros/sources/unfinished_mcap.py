"""Reads an MCAP file that its recorder did not finish, up to where its records end."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import IO

MAGIC = b"\x89MCAP0\r\n"

_FOOTER = b"\x02" + struct.pack("<QQQI", 20, 0, 0, 0)  # this footer names no summary, so readers scan the records
_HEAD = struct.Struct("<BQ")  # a record's kind and length
_NO_RECORD, _FOOTER_KIND = 0, 2


def ends_early(path: Path) -> bool:
    """Returns whether a file begins like an MCAP file but does not end like one.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return False
        file.seek(-len(MAGIC), io.SEEK_END)
        return file.tell() < len(MAGIC) or file.read() != MAGIC


class UnfinishedMcap:
    """Shows an unfinished MCAP file as a finished one: its complete records, then an end.

    It has those methods of a ``Path`` that the reader of ``rosbags`` calls.

    Args:
        path: the file's path.

    Attributes:
        suffix: the end of the file's name, such as ``.mcap``.
        lost_bytes: how many bytes behind the last complete record are left out.

    Raises:
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.suffix = path.suffix
        size = path.stat().st_size
        self._end = _end_of_records(path, size)
        self.lost_bytes = size - self._end

    def __str__(self) -> str:
        return str(self._path)

    def exists(self) -> bool:
        """Returns whether the file exists."""
        return self._path.exists()

    def is_dir(self) -> bool:
        """Returns False: this is a file."""
        return False

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Opens the file for reading, with the end that it lacks. ``mode`` must be ``rb``."""
        assert mode == "rb"
        return io.BufferedReader(_Spliced(self._path, self._end, _FOOTER + MAGIC))


class _Spliced(io.RawIOBase):
    """Reads the first ``length`` bytes of a file and then the bytes of ``tail``."""

    def __init__(self, path: Path, length: int, tail: bytes) -> None:
        self._file = path.open("rb")
        self._length, self._tail, self._place = length, tail, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._length + len(self._tail)}[whence]
        self._place = max(0, base + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._place < self._length:
            self._file.seek(self._place)
            data = self._file.read(min(len(buffer), self._length - self._place))
        else:
            start = self._place - self._length
            data = self._tail[start : start + len(buffer)]
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def _end_of_records(path: Path, size: int) -> int:
    """Returns the offset at which the last complete record before a footer ends."""
    end = len(MAGIC)
    with path.open("rb") as file:
        while True:
            file.seek(end)
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return end
            kind, length = _HEAD.unpack(head)
            if kind in (_NO_RECORD, _FOOTER_KIND) or end + _HEAD.size + length > size:
                return end
            end += _HEAD.size + length
