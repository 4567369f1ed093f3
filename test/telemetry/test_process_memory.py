"""The memory of this process."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from split_infer_ros.telemetry.process_memory import ProcessMemory, process_memory

MIB = 2**20


def test_the_heap_is_anonymous() -> None:
    before = process_memory()
    assert 0 < before.anonymous_bytes < before.resident_bytes
    block = np.ones(64 * MIB, np.uint8)
    after = process_memory()
    assert after.anonymous_bytes - before.anonymous_bytes == pytest.approx(block.nbytes, rel=0.1)
    assert after.resident_bytes - before.resident_bytes == pytest.approx(block.nbytes, rel=0.1)


def test_a_mapped_file_is_resident_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(32 * MIB))
    before = process_memory()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert int(np.frombuffer(mapped, np.uint8)[::4096].max()) > 0
        after = process_memory()
    assert after.resident_bytes - before.resident_bytes == pytest.approx(32 * MIB, rel=0.2)
    assert after.anonymous_bytes - before.anonymous_bytes < 8 * MIB


@pytest.mark.parametrize("text", ["", "Name:\tpython\n", "VmRSS:\t12 MB\nRssAnon:\t-1 kB\n", "no colon"])
def test_what_the_system_does_not_tell_is_0(text: str, tmp_path: Path) -> None:
    path = tmp_path / "status"
    path.write_text(text)
    assert process_memory(path) == ProcessMemory(0, 0)
    assert process_memory(tmp_path / "missing") == ProcessMemory(0, 0)


def test_linux_writes_kib(tmp_path: Path) -> None:
    path = tmp_path / "status"
    path.write_text("Name:\tx: y\nVmRSS:\t  2000 kB\nRssAnon:\t    1500 kB\nRssFile:\t 500 kB\n")
    assert process_memory(path) == ProcessMemory(2000 * 1024, 1500 * 1024)
