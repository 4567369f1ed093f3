"""Files that begin with a digest of their content. A damaged or half-written file is treated as missing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from split_infer_ros.runtime.user_files import open_regular

HEADER_BYTES = 65  # a SHA-256 in hexadecimal digits, and a newline


def header_of(content: Any) -> bytes:
    """Returns the header of a file with this content, ``HEADER_BYTES`` bytes. The content is bytes or other memory."""
    return hashlib.sha256(content).hexdigest().encode() + b"\n"


def read_checked(path: Path, make_room: Callable[[int], Any] = bytearray) -> Any:
    """Reads the content of a file into memory that ``make_room`` gives.

    Args:
        path: the file.
        make_room: returns writable memory for a number of bytes.

    Returns:
        The memory from ``make_room``, with the content; None if the file is damaged or empty.

    Raises:
        OSError: the file cannot be read, or is no regular file.
    """
    with open(path, "rb", opener=open_regular) as file:
        num_bytes = os.fstat(file.fileno()).st_size - HEADER_BYTES
        if num_bytes <= 0:
            return None
        header, memory = file.read(HEADER_BYTES), make_room(num_bytes)
        file.readinto(memory)
    return memory if header == header_of(memory) else None
