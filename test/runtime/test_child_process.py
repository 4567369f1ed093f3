"""A process that answers requests, and that is ended with all that it started."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from split_infer_ros.runtime.child_loop import describe_error
from split_infer_ros.runtime.child_process import ChildError, ChildProcess, describe_status, read_line
from split_infer_ros.runtime.search_path import PACKAGE_FOLDER

PROGRAM = f"""
import os, subprocess, sys, time
sys.path.insert(0, {PACKAGE_FOLDER!r})
from split_infer_ros.runtime.child_loop import serve

def prepare(told):
    if "broken" in told:
        raise ValueError("no such model\\nat all")
    if "slow" in told:
        time.sleep(100)
    if "gone" in told:
        sys.exit(3)
    def answer(request):
        does = request["does"]
        if does == "hang":
            time.sleep(100)
        if does == "leave":
            sys.exit(3)
        if does == "start":
            does = subprocess.Popen(["sleep", "100"]).pid
        return {{"did": does, "told": told, "set": os.environ.get("A_VARIABLE")}}
    return answer

sys.exit(serve(prepare, 0.1 if "impatient" in sys.argv else None))
"""


def made(*told: str, max_start_s: float = 20) -> ChildProcess:
    return ChildProcess((sys.executable, "-c", PROGRAM), told, {"A_VARIABLE": "1"}, max_start_s=max_start_s)


def started(*told: str, max_start_s: float = 20) -> ChildProcess:
    process = made(*told, max_start_s=max_start_s)
    process.start()
    return process


def test_requests_are_answered_in_order() -> None:
    process = started("a", "b")
    for does in ("this", "that"):
        assert process.ask({"does": does}, 20) == {"did": does, "told": ["a", "b"], "set": "1"}
    assert process.is_running
    assert process.end() == "SIGKILL"


def test_a_process_runs_from_its_start_to_its_end() -> None:
    process = made()
    assert (process.is_running, process.pid, process.end()) == (False, None, "nothing")
    process.start()
    first = process.pid
    process.start()
    process.wait_until_ready()
    assert process.pid == first, "it runs already"
    process.end()
    process.start()
    assert process.pid not in (first, None)
    assert process.ask({"does": "this"}, 20)["did"] == "this"
    process.end()


def test_a_process_that_leaves_answers_nothing() -> None:
    process = started()
    assert process.ask({"does": "leave"}, 20) == {"died": "exit code 3"}
    assert not process.is_running


def test_a_late_answer_is_not_waited_for() -> None:
    process = started()
    assert process.ask({"does": "hang"}, 0.3) == {"late": True}
    assert not process.is_running


def test_a_child_gives_way_to_all_and_tells_its_processor_time() -> None:
    process = ChildProcess((sys.executable, "-c", PROGRAM), ("a",), max_start_s=20, gives_way=True)
    process.start()
    process.wait_until_ready()
    assert process.pid is not None
    assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
    assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "1000\n", "it is ended first if memory is short"
    first_s = process.processor_s
    assert first_s > 0.0, "it has started Python"
    process.end()
    assert process.processor_s >= first_s
    process.start()
    process.wait_until_ready()
    assert process.processor_s > first_s, "earlier processes count"
    process.end()


def test_another_thread_may_kill_a_child_that_works() -> None:
    process = started()
    process.wait_until_ready()
    assert process.ask({"does": "hang"}, 20, meanwhile=process.kill) == {"died": "SIGKILL"}
    process.kill()  # nothing is there to kill


def test_an_interrupted_request_ends_the_process() -> None:
    """Or else the next request would get its answer."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    process = started()
    with pytest.raises(KeyboardInterrupt):
        process.ask({"does": "this"}, 20, interrupt)
    assert not process.is_running


def test_other_work_does_not_count() -> None:
    process = started()
    assert process.ask({"does": "this"}, 0.5, lambda: time.sleep(1))["did"] == "this"
    process.end()


def test_what_a_process_started_ends_with_it() -> None:
    process = started()
    answer = process.ask({"does": "start"}, 20)
    process.end()
    _, alive = psutil.wait_procs([psutil.Process(answer["did"])] if psutil.pid_exists(answer["did"]) else [], 10)
    assert not alive or all(each.status() == psutil.STATUS_ZOMBIE for each in alive)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("broken", "^ValueError: no such model$"),
        ("gone", "^its process ended with exit code 3$"),
        ("slow", r"^it was not ready within 0\.5 s$"),
    ],
)
def test_a_process_that_is_never_ready_says_why(told: str, reason: str) -> None:
    process = started(told, max_start_s=0.5 if told == "slow" else 20)
    with pytest.raises(ChildError, match=reason):
        process.ask({"does": "this"}, 20)
    assert not process.is_running


def test_a_process_without_a_request_ends_by_itself() -> None:
    process = started("impatient")
    process.wait_until_ready()
    assert process.end(20) == "exit code 0"


def test_a_missing_program_is_an_error() -> None:
    with pytest.raises(ChildError, match=r"no process can be started .*nowhere"):
        ChildProcess(("/nowhere/program",), max_start_s=20).start()


def test_a_line_may_come_in_parts_or_never() -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"one")
    with pytest.raises(TimeoutError):
        read_line(read_end, 0.05)
    os.write(write_end, b" more\nanother")
    assert read_line(read_end, 20, b"one") == b"one more\nanother"
    os.close(write_end)
    assert read_line(read_end, 20, b"another") == b"another"
    os.close(read_end)


def test_an_error_is_one_line() -> None:
    assert describe_error(ValueError("first\nsecond")) == "ValueError: first"
    assert describe_error(MemoryError()) == "MemoryError"


def test_how_a_process_ended_is_said_in_words() -> None:
    assert describe_status(-11) == "SIGSEGV"
    assert describe_status(1) == "exit code 1"
