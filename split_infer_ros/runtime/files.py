"""Writes files that other processes may read at any time, and identifies files by their content."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from split_infer_ros.runtime.user_files import open_regular

_CHUNK_BYTES = 1 << 20

_digests: dict[tuple[object, ...], str] = {}  # digests of files, by path and by what stat says about the file


def content_digest(path: Path) -> str:
    """Returns the SHA-256 of a file's content in hexadecimal digits. Reads a file again only if it has changed.

    Raises:
        OSError: the file cannot be read, or is no regular file.
    """
    facts = path.stat()
    key = path, facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
    if key not in _digests:
        content = hashlib.sha256()
        with open(path, "rb", opener=open_regular) as file:
            while chunk := file.read(_CHUNK_BYTES):
                content.update(chunk)
        _digests[key] = content.hexdigest()
    return _digests[key]


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file as a whole or not at all. Readers find the old content or the new one, even after a power cut.

    An existing file keeps its permissions. A new file can be read only by its owner. Missing folders are made.

    Args:
        path: the file.
        data: its content.

    Raises:
        OSError: the file cannot be written, for example because the disk is full. The old file stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, suffix=".part", delete=False) as new:
        try:
            new.write(data)
            new.flush()
            os.fsync(new.fileno())
            with suppress(FileNotFoundError):
                os.fchmod(new.fileno(), path.stat().st_mode & 0o777)
            Path(new.name).replace(path)
        except BaseException:  # a signal may end the process here
            Path(new.name).unlink()
            raise
