"""A trial that crashes, hangs or answers nonsense ends alone."""

from __future__ import annotations

import sys
import time

import psutil
import pytest

from split_infer_ros.autotuning.trial_process import TrialOutcome, TrialProcess
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.split.model_spec import ModelSpec

# A worker without torch: does as the configuration says.
SIMULATED = """
import json, os, signal, subprocess, sys, time
answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
if json.loads(sys.argv[2]).get("name") == "broken":
    print(json.dumps({"error": "no such model"}), file=answers)
    sys.exit(1)
print(json.dumps({"ready": True}), file=answers)
for line in sys.stdin:
    request = json.loads(line)
    does = request["config"]["does"]
    if does == "hang":
        subprocess.Popen(["sleep", "100"])
        time.sleep(100)
    elif does == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif does == "leave":
        sys.exit(3)
    elif does == "fail":
        print(json.dumps({"error": "ValueError: it cannot"}), file=answers)
    else:
        costs = [float(os.getpid())]
        print(json.dumps({"costs": costs, "uncertain": does == "doubt", "difference": 1e-6}), file=answers)
"""


@pytest.fixture
def trials():
    with TrialProcess(ModelSpec("m"), (sys.executable, "-c", SIMULATED)) as process:
        yield process


def run(trials: TrialProcess, does: str, limit_s: float = 30.0) -> TrialOutcome:
    return trials.run("network", {"does": does}, {}, limit_s)


def test_one_process_serves_until_it_is_lost(trials):
    first, again = run(trials, "work"), run(trials, "work")
    assert first == again
    assert first.error is None
    assert first.facts == {"difference": 1e-6}
    assert run(trials, "doubt").facts["uncertain"] is True
    assert run(trials, "fail") == TrialOutcome((), "ValueError: it cannot")
    assert run(trials, "work") == first, "a reported failure does not end the process"
    assert run(trials, "crash").error == "It crashed: its process ended with SIGSEGV."
    after = run(trials, "work")
    assert after.error is None
    assert after.costs != first.costs
    assert run(trials, "leave").error == "It crashed: its process ended with exit code 3."
    assert run(trials, "work").error is None


def test_hanging_trial_is_ended_with_its_child_processes(trials):
    run(trials, "work")
    begin = time.monotonic()
    outcome = run(trials, "hang", 0.5)
    assert time.monotonic() - begin < 20
    assert outcome.error == "It did not finish within 0 s."
    assert outcome.facts == {"limit_s": 0.5}
    assert not [child for child in psutil.Process().children(recursive=True) if child.name() == "sleep"]
    assert run(trials, "work").error is None


def test_nothing_is_left_running():
    with TrialProcess(ModelSpec("m"), (sys.executable, "-c", SIMULATED)) as process:
        (number,) = run(process, "work").costs
        assert psutil.pid_exists(int(number))
    assert not psutil.pid_exists(int(number))


def test_model_that_cannot_be_loaded_is_reported():
    simulated = TrialProcess(ModelSpec("broken"), (sys.executable, "-c", SIMULATED))
    with simulated as process, pytest.raises(ConfigurationError, match="cannot be tuned: no such model"):
        run(process, "work")
    with (
        TrialProcess(ModelSpec("m"), ("/nowhere/python",)) as process,
        pytest.raises(ConfigurationError, match="can be started"),
    ):
        run(process, "work")
    with (
        TrialProcess(ModelSpec("m"), ("/bin/false",)) as process,
        pytest.raises(ConfigurationError, match="exit code 1"),
    ):
        run(process, "work")
