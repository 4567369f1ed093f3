"""Settings of a process, tested in processes of their own because they cannot be undone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from split_infer_ros.runtime.process import QUEUES_VARIABLE, use_all_queues

CHILD_S = 120  # a bound on the process that a test starts; the test's own bound lies above it
PASSES = """
import resource, threading, torch
from split_infer_ros.runtime.process import keep_freed_memory
print(keep_freed_memory())

def faults(): return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt

def work():
    for _ in range(8): torch.ones(20_000_000), torch.ones(5_000_000)
    before = faults()
    for _ in range(5): torch.ones(20_000_000), torch.ones(5_000_000)
    print(faults() - before)

torch.set_num_threads(1)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
PAGES = 5 * 100_000_000 // 4096


def run(**variables: str) -> tuple[bool, int]:
    """Returns whether freed memory is kept, and the page faults of five passes."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", PASSES],
        env=mine | variables,
        capture_output=True,
        text=True,
        timeout=CHILD_S,
        check=True,
    )
    kept, faults = done.stdout.split()
    return kept == "True", int(faults)


@pytest.mark.timeout(2 * CHILD_S)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc's")
def test_large_tensors_reuse_freed_memory() -> None:
    kept, faults = run()
    assert kept
    assert faults < PAGES / 50


@pytest.mark.timeout(2 * CHILD_S)
def test_the_users_settings_stay() -> None:
    kept, _ = run(MALLOC_ARENA_MAX="2")
    assert not kept


@pytest.mark.parametrize(("given", "expected"), [({}, "32"), ({QUEUES_VARIABLE: "1"}, "1")])
def test_streams_get_all_queues_unless_the_user_chose(
    given: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    use_all_queues()
    assert os.environ == {QUEUES_VARIABLE: expected}
