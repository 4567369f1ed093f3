"""Memory of several processes: what belongs to one is added, and what they share counts once."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from benchmarks.common.usage import MB, resident_bytes
from benchmarks.ros import process_memory
from benchmarks.ros.process_memory import memory_mb, of_process

SMAPS = """\
7f0000000000-7f0000200000 r--p 00000000 08:01 42                         /usr/lib/libbig one.so
Size:               2048 kB
Rss:                {library} kB
Anonymous:             4 kB
VmFlags: rd mr mw me sd
7f0000200000-7f0000300000 rw-p 00000000 00:00 0
Size:               1024 kB
Rss:                 {heap} kB
Anonymous:           {heap} kB
7f0000300000-7f0000310000 rw-s 00000000 00:1a 7                          /dev/shm/fastdds
Rss:                  64 kB
Anonymous:             0 kB
7f0000400000-7f0000600000 r-xp 00200000 08:01 42                         /usr/lib/libbig one.so
Rss:                 100 kB
Anonymous:             0 kB
"""


def test_private_memory_is_told_from_that_of_files() -> None:
    private, files = of_process(SMAPS.format(library=1004, heap=500))
    assert private == 504 << 10
    assert files == {"/usr/lib/libbig one.so": 1100 << 10, "/dev/shm/fastdds": 64 << 10}


def test_files_of_several_processes_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"/proc/1/smaps": SMAPS.format(library=1004, heap=500), "/proc/2/smaps": SMAPS.format(library=504, heap=10)}
    monkeypatch.setattr(process_memory, "Path", lambda path: SimpleNamespace(read_text=lambda: texts[path]))
    assert memory_mb([1, 2]) == ((504 + 14 + 1100 + 64) << 10) / 1e6


def test_a_process_alone_holds_its_resident_memory() -> None:
    held = memory_mb([os.getpid()])
    assert held == pytest.approx(resident_bytes() / MB, rel=0.1)  # it grows while its mappings are read
    assert memory_mb([os.getpid()] * 2) < 2 * held
