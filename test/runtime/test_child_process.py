"""A process that answers requests, and that is ended with all that it started."""

from __future__ import annotations

import sys

import psutil
import pytest

from split_infer_ros.runtime.child_process import ChildProcess, describe_status

PROGRAM = """
import json, os, subprocess, sys, time
answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
for line in sys.stdin:
    does = json.loads(line)["does"]
    if does == "hang":
        time.sleep(100)
    if does == "leave":
        sys.exit(3)
    if does == "start":
        does = subprocess.Popen(["sleep", "100"]).pid
    print(json.dumps({"did": does, "told": sys.argv[2:], "set": os.environ.get("A_VARIABLE")}), file=answers)
"""


def started() -> ChildProcess:
    return ChildProcess((sys.executable, "-c", PROGRAM), ["a", "b"], {"A_VARIABLE": "1"})


def test_requests_are_answered_in_order() -> None:
    process = started()
    for does in ("this", "that"):
        assert process.ask({"does": does}, 20) == {"did": does, "told": ["a", "b"], "set": "1"}
    assert process.is_running
    assert process.end() == "SIGKILL"


def test_a_process_that_leaves_answers_nothing() -> None:
    process = started()
    assert process.ask({"does": "leave"}, 20) is None
    assert process.end(10) == "exit code 3"
    assert not process.is_running


def test_a_late_answer_is_not_waited_for() -> None:
    process = started()
    with pytest.raises(TimeoutError):
        process.ask({"does": "hang"}, 0.3)
    assert process.end() == "SIGKILL"


def test_what_a_process_started_ends_with_it() -> None:
    process = started()
    answer = process.ask({"does": "start"}, 20)
    assert answer is not None
    process.end()
    _, alive = psutil.wait_procs([psutil.Process(answer["did"])] if psutil.pid_exists(answer["did"]) else [], 10)
    assert not alive or all(each.status() == psutil.STATUS_ZOMBIE for each in alive)


def test_a_missing_program_is_an_error() -> None:
    with pytest.raises(OSError, match="nowhere"):
        ChildProcess(("/nowhere/program",))


def test_how_a_process_ended_is_said_in_words() -> None:
    assert describe_status(-11) == "SIGSEGV"
    assert describe_status(1) == "exit code 1"
