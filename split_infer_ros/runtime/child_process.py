"""A process that answers requests: lines of JSON on its standard input, answers on a pipe of its own."""

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
    """A process that this one started, and that can be ended with everything that it starts itself.

    Neither it nor any Python that it starts searches the working folder for modules.

    Args:
        command: of the process. The number of its answers' file descriptor follows, and then the arguments.
        arguments: what else it is told.
        environment: variables that it has in addition to this process's.

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
                start_new_session=True,  # Ctrl-C goes to this process alone, and all that the child starts can be ended
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
        """False once it has ended."""
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any] | None:
        """Sends a request and returns the answer, or None if the process ended.

        Raises:
            TimeoutError: there was no answer within ``limit_s``.
        """
        self.send(request)
        return self.next_answer(limit_s)

    def send(self, request: Mapping[str, Any]) -> None:
        """Sends a request, whose answer comes later. Nothing is raised if the process ended: then no answer comes."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def next_answer(self, limit_s: float) -> dict[str, Any] | None:
        """Returns the next answer, or None if the process ended.

        Raises:
            TimeoutError: there was none within ``limit_s``.
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
        """Ends the process and all that it started, after at most ``wait_s``, and returns how it ended."""
        if wait_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
        with contextlib.suppress(ProcessLookupError):  # what it started, for example compilers, is in its group
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        os.close(self._answers)
        return describe_status(status)


def describe_status(status: int) -> str:
    """Says in words how a process ended, by the return code that ``subprocess`` gives it."""
    return signal.Signals(-status).name if status < 0 else f"exit code {status}"
