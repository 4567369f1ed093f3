"""A file with a digest in front is read as it was written, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from split_infer_ros.runtime.checked_files import HEADER_BYTES, header_of, read_checked

CONTENT = b"what was written"
WHOLE = header_of(CONTENT) + CONTENT


def test_a_content_is_read_into_memory_of_the_callers(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(WHOLE)
    assert len(WHOLE) == HEADER_BYTES + len(CONTENT)
    assert read_checked(path) == CONTENT
    room = np.zeros(len(CONTENT), np.uint8)
    assert read_checked(path, lambda num_bytes: room[:num_bytes]) is not None
    assert room.tobytes() == CONTENT


@pytest.mark.parametrize("damaged", [b"", WHOLE[:HEADER_BYTES], WHOLE[:-1], WHOLE + b"!", b"0" + WHOLE[1:], CONTENT])
def test_a_damaged_file_counts_as_none(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(damaged)
    assert read_checked(path) is None


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_checked(tmp_path / "none")
    with pytest.raises(OSError, match="it is a folder"):
        read_checked(tmp_path)
