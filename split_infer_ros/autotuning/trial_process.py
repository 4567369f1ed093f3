"""Runs trials in a process of their own, so that a crash costs one trial and not the search."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Protocol

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.record import Record
from split_infer_ros.split.model_spec import ModelSpec

MAX_START_S = 180.0  # imports, and a model's weights
MAX_EXIT_S = 2.0  # between the end of a process's answers and its exit
WORKER = (sys.executable, "-m", "split_infer_ros.autotuning.worker")


@dataclass(frozen=True)
class TrialOutcome:
    """The result of a trial.

    Attributes:
        costs: samples, in seconds.
        error: why there are none.
        facts: what else was observed: ``uncertain``, ``difference``, and the ``limit_s`` that a trial exceeded.
    """

    costs: tuple[float, ...] = ()
    error: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def had_too_little_time(record: Record, limit_s: float) -> bool:
    """Returns whether a trial was ended by a limit of less than half of ``limit_s``."""
    old_limit_s = record.facts.get("limit_s")
    return record.error is not None and isinstance(old_limit_s, (int, float)) and old_limit_s < limit_s / 2


class TrialRunner(Protocol):
    """Runs trials."""

    def run(self, stage: str, config: Mapping[str, Any], about: Mapping[str, Any], limit_s: float) -> TrialOutcome:
        """Runs one trial."""
        ...


class TrialProcess:
    """Runs trials of one model, one at a time, in a process that starts at the first trial and after a crash.

    It is a context, which ends the process.

    Args:
        spec: the model and its device. Each trial sets precision and execution config itself.
        worker: the command of the process.
    """

    def __init__(self, spec: ModelSpec, worker: Sequence[str] = WORKER) -> None:
        model = {name: getattr(spec, name) for name in ("name", "weights", "device", "allow_user_code")}
        self._model = json.dumps(model | asdict(spec.onnx_options))
        self._worker = worker
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = -1
        self._text = b""

    def __enter__(self) -> TrialProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(self, stage: str, config: Mapping[str, Any], about: Mapping[str, Any], limit_s: float) -> TrialOutcome:
        """Runs one trial. A crash or a hang is an outcome too.

        Raises:
            ConfigurationError: the process cannot be started, or cannot load this model.
        """
        process = self._started()
        request = {"stage": stage, "config": dict(config), "about": dict(about), "limit_s": limit_s}
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            answer = self._next_line(limit_s)
        except BrokenPipeError:
            answer = None
        except TimeoutError:
            self._end()
            return TrialOutcome((), f"It did not finish within {limit_s:.0f} s.", {"limit_s": limit_s})
        except BaseException:  # Ctrl-C: the next trial would read this trial's answer
            self._end()
            raise
        if answer is None:
            return TrialOutcome((), f"It crashed: its process ended with {self._end(MAX_EXIT_S)}.")
        if "error" in answer:
            return TrialOutcome((), answer["error"])
        facts = {name: value for name, value in answer.items() if name != "costs" and value is not False}
        return TrialOutcome(tuple(answer["costs"]), None, facts)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        self._answers, write_end = os.pipe()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            self._process = subprocess.Popen(
                [*self._worker, str(write_end), self._model],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(write_end,),
                env=environment,
                start_new_session=True,  # Ctrl-C goes to the search alone, and all that a trial starts can be ended
            )
        except OSError as error:
            raise ConfigurationError(f"No process for trials can be started ({error}).") from error
        finally:
            os.close(write_end)
        try:
            answer = self._next_line(MAX_START_S)
        except TimeoutError:
            answer = {"error": f"it was not ready within {MAX_START_S:g} s"}
        if answer is None or "error" in answer:
            status = self._end(MAX_EXIT_S)
            reason = f"its process ended with {status}" if answer is None else answer["error"]
            raise ConfigurationError(f"The model cannot be tuned: {reason}.")
        return self._process

    def _next_line(self, limit_s: float) -> dict[str, Any] | None:
        """Returns the next answer, or None if the process ended. Raises TimeoutError."""
        end = time.monotonic() + limit_s
        while b"\n" not in self._text:
            left_s = end - time.monotonic()
            if left_s <= 0 or not select.select([self._answers], [], [], left_s)[0]:
                raise TimeoutError
            more = os.read(self._answers, 65536)
            if not more:
                return None
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _end(self, wait_s: float = 0.0) -> str:
        """Ends the process and all that it started, after at most ``wait_s``, and returns how it ended."""
        process, self._process, self._text = self._process, None, b""
        if process is None:
            return "nothing"
        if wait_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)
        with contextlib.suppress(ProcessLookupError):  # what it started, for example compilers, is in its group
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        os.close(self._answers)
        return signal.Signals(-status).name if status < 0 else f"exit code {status}"
