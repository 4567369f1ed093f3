from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from split_infer_ros.runtime import cores, num_threads

CHILD_S = 100  # a bound on the process that a test starts; the test's own bound lies above it
COUNT = """
import os, sys
from split_infer_ros.runtime.num_threads import max_threads
assert "torch" not in sys.modules
import torch
print(max_threads(), torch.get_num_threads())
"""
COUNT_OF_LIBRARY = """
import importlib.util, sys, types
from split_infer_ros.runtime.num_threads import max_threads
torch = types.ModuleType("torch")  # without torch's Python modules, whose import takes seconds
torch.__path__ = importlib.util.find_spec("torch").submodule_search_locations
sys.modules["torch"] = torch
import torch._C
print(max_threads(), torch._C.get_num_threads())
"""
LATE_TORCH = """
from split_infer_ros.runtime.num_threads import *
from split_infer_ros.runtime.num_threads import engine_lanes, engine_threads
use_threads(3, 2)
assert (engine_threads(), engine_lanes()) == (3, 2)
import torch
tell_torch()
assert torch.get_num_threads() == 3
use_one_thread()
assert torch.get_num_threads() == 1
found = run_with_threads(2, lambda: (torch.get_num_threads(), engine_threads()))
assert found == (2, 2), found
assert torch.get_num_threads() == 1
use_engine_threads(4)
assert (torch.get_num_threads(), engine_threads()) == (1, 4)
torch.set_num_threads(5)
tell_torch()
assert (torch.get_num_threads(), engine_threads()) == (1, 4)
print("as promised")
"""


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(num_threads, "_MAX_THREADS", 2)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_each_thread_keeps_its_own_number_of_threads() -> None:
    turn = threading.Barrier(2)
    seen: dict[str, int] = {}

    def stage(name: str, use: Callable[[], None], first: bool) -> None:
        if not first:
            turn.wait()
        use()
        if first:
            turn.wait()
        turn.wait()
        torch.ones(100_000).add_(1)  # the first operation of this thread
        seen[name] = torch.get_num_threads()

    threads = [
        threading.Thread(target=stage, args=("head", num_threads.use_one_thread, True)),
        threading.Thread(target=stage, args=("backbone", num_threads.use_all_threads, False)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"head": 1, "backbone": 2}


def test_a_threads_number_can_change() -> None:
    num_threads.use_one_thread()
    assert torch.get_num_threads() == 1
    num_threads.use_all_threads()
    assert torch.get_num_threads() == 2


def child(program: str, **variables: str) -> str:
    mine = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=mine | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables,
        capture_output=True,
        text=True,
        timeout=CHILD_S,
        check=True,
    )
    return done.stdout


@pytest.mark.timeout(2 * CHILD_S)
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="without MKL, torch counts processors, not cores")
@pytest.mark.parametrize("asked", [None, "1", "2,4", " 400 ", "0", "many"])
def test_a_process_has_the_threads_that_torch_starts_with(asked: str | None) -> None:
    variables = {} if asked is None else {"OMP_NUM_THREADS": asked}
    own, of_torch = child(COUNT_OF_LIBRARY, **variables).split()
    assert own == of_torch


@pytest.mark.timeout(2 * CHILD_S)
def test_torch_keeps_the_threads_of_its_library() -> None:
    own, of_torch = child(COUNT).split()
    assert own == of_torch == child(COUNT_OF_LIBRARY).split()[1]


@pytest.mark.timeout(2 * CHILD_S)
def test_cores_that_the_process_may_not_use_do_not_count() -> None:
    one = min(os.sched_getaffinity(0))
    assert child(f"import os; os.sched_setaffinity(0, [{one}])\n{COUNT}") == "1 1\n"


def test_two_processors_of_a_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu, siblings in enumerate(("0-1", "0-1", "2-3", "2-3")):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    monkeypatch.setattr(cores, "CPUS", tmp_path)
    monkeypatch.delenv(num_threads.VARIABLE, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert num_threads.threads_at_start() == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 6})  # nothing is known of the last
    assert num_threads.threads_at_start() == 2
    monkeypatch.setenv(num_threads.VARIABLE, "1,8")
    assert num_threads.threads_at_start() == 1


def test_threads_are_set_while_another_thread_imports_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))  # its first lines have run

    def numbers() -> tuple[int, int, int]:
        before = num_threads.engine_threads()
        num_threads.use_engine_threads(5, 3)
        return before, num_threads.engine_threads(), num_threads.engine_lanes()

    assert num_threads.run_with_threads(None, numbers) == (2, 5, 3)


@pytest.mark.timeout(2 * CHILD_S)
def test_torch_that_is_imported_later_is_told() -> None:
    assert child(LATE_TORCH) == "as promised\n"
