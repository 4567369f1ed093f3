"""A child process that answers requests. It reads lines of JSON from standard input and writes answers to a pipe."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from split_infer_ros.runtime.search_path import child_environment


class ChildProcess:
    """A child process. ``end`` also ends all processes that it started.

    Neither the child nor any Python that it starts searches the working folder for modules.

    Args:
        command: the command of the child. The number of the file descriptor for answers is appended, then
            ``arguments``.
        arguments: further arguments of the command.
        environment: variables that the child has in addition to those of this process.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(
        self, command: Sequence[str], arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self._text = b""
        self._answers, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*command, str(write_end), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(write_end,),
                env={**os.environ, **child_environment(), **(environment or {})},
                start_new_session=True,  # Ctrl-C reaches only this process, and the child's own processes can be ended
            )
        except OSError:
            os.close(self._answers)
            raise
        finally:
            os.close(write_end)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any] | None:
        """Sends a request and returns the answer, or None if the process ended.

        Raises:
            TimeoutError: there was no answer within ``limit_s``.
        """
        self.send(request)
        return self.next_answer(limit_s)

    def send(self, request: Mapping[str, Any]) -> None:
        """Sends a request without waiting for its answer. If the process has ended, raises nothing; no answer comes."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def next_answer(self, limit_s: float) -> dict[str, Any] | None:
        """Returns the next answer, or None if the process ended.

        Raises:
            TimeoutError: there was no answer within ``limit_s``.
        """
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

    def end(self, wait_s: float = 0.0) -> str:
        """Gives the process ``wait_s`` to end, kills it and all that it started, and returns how it ended."""
        if wait_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
        with contextlib.suppress(ProcessLookupError):  # its group has all processes that it started, such as compilers
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        os.close(self._answers)
        return describe_status(status)


def describe_status(status: int) -> str:
    """Returns words for how a process ended, made from the return code that ``subprocess`` reports."""
    return signal.Signals(-status).name if status < 0 else f"exit code {status}"
