"""Runs a process that follows lines on its standard input, and ends when its input ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType

STOP_S = 5.0


class LineProcess:
    """Runs a Python module in a process of its own. Leaving the context closes the process's input, which ends it.

    Args:
        command: the arguments of the Python interpreter: the module and its arguments.
        environment: the environment of the process. The default is the environment of this process.
        answers: whether this process reads what the module prints. If not, the module prints where this process does.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, answers: bool = False
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if answers else None,
            text=True,
            bufsize=1,
            env=environment,
        )

    def __enter__(self) -> LineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send_line(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
