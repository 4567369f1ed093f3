"""Starts, asks and ends a child process that answers requests; ``child_loop`` has what the child runs.

The child gets requests as lines of JSON on standard input, and writes answers to a pipe. Its first line says that the
child is ready, or why it cannot become ready.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from split_infer_ros.runtime.priority import give_way_to_all
from split_infer_ros.runtime.search_path import child_environment

MAX_EXIT_S = 2.0  # between the end of a process's answers and its exit


class ChildError(Exception):
    """A child process cannot be started, or does not become ready. The text says why, without a full stop."""


class ChildProcess:
    """A child process, which takes one request at a time. After its end, it can be started again.

    Neither the child nor any Python that it starts searches the working folder for modules.

    Args:
        command: the command of the child. The number of the file descriptor for answers is appended, then
            ``arguments``.
        arguments: further arguments of the command.
        environment: variables that the child has in addition to those of this process.
        max_start_s: how many seconds the child may take until it is ready.
        gives_way: whether the child leaves cores and memory to all other processes, where the system can do that.
    """

    def __init__(
        self,
        command: Sequence[str],
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        *,
        max_start_s: float,
        gives_way: bool = False,
    ) -> None:
        self._command, self._arguments, self._environment = command, arguments, environment or {}
        self._max_start_s, self._gives_way = max_start_s, gives_way
        self._ended_s = 0.0  # processor time of the processes that have ended
        self._process: subprocess.Popen[bytes] | None = None
        self._answers, self._text, self._is_ready = -1, b"", False

    @property
    def pid(self) -> int | None:
        """The child's process id; None before ``start`` and after ``end``."""
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has started and not ended yet."""
        return self._process is not None and self._process.poll() is None

    @property
    def processor_s(self) -> float:
        """Seconds of processor time that the child took so far, with earlier ones. Only Linux tells it."""
        with contextlib.suppress(OSError, AttributeError):
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return self._ended_s + sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return self._ended_s

    def kill(self) -> None:
        """Kills the process, with all processes that it started. Any thread may call this."""
        process = self._process
        if process is not None:
            _kill(process)

    def start(self) -> None:
        """Starts the process, unless it runs already. Does not wait until the process is ready.

        Raises:
            ChildError: the process cannot be started.
        """
        if self.is_running:
            return
        self.end()
        answers, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*self._command, str(write_end), *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(write_end,),
                env={**os.environ, **child_environment(), **self._environment},
                start_new_session=True,  # Ctrl-C reaches only this process, and the child's own processes can be ended
            )
        except OSError as error:
            os.close(answers)
            raise ChildError(f"no process can be started ({error})") from error
        finally:
            os.close(write_end)
        self._answers, self._text, self._is_ready = answers, b"", False
        if self._gives_way:  # at once: threads that it starts inherit it
            give_way_to_all(self._process.pid)

    def wait_until_ready(self) -> None:
        """Waits until the started process is ready for requests. If it does not become ready, ends it.

        Raises:
            ChildError: the process ended, says that it cannot become ready, or takes longer than ``max_start_s``.
        """
        if self._is_ready:
            return
        try:
            answer = self._next_answer(self._max_start_s)
        except TimeoutError:
            answer = {"error": f"it was not ready within {self._max_start_s:g} s"}
        if answer is None or "error" in answer:
            status = self.end(MAX_EXIT_S)
            raise ChildError(f"its process ended with {status}" if answer is None else answer["error"])
        self._is_ready = True

    def ask(
        self, request: Mapping[str, Any], limit_s: float, meanwhile: Callable[[], object] = lambda: None
    ) -> dict[str, Any]:
        """Sends a request to the started process, and returns the answer. The process need not be ready yet.

        Args:
            request: the request, which can be written as JSON.
            limit_s: how many seconds the answer may take, once the process is ready and ``meanwhile`` has returned.
            meanwhile: called while the process works.

        Returns:
            The answer. If the answer takes too long, the process is ended, and the result is ``{"late": True}``. If the
            process ends without an answer, the result is ``{"died": words}``, with the words of ``describe_status``.

        Raises:
            ChildError: the process does not become ready.
        """
        try:
            self._send(request)
            meanwhile()
            self.wait_until_ready()
            answer = self._next_answer(limit_s)
        except TimeoutError:
            self.end()
            return {"late": True}
        except BaseException:  # Ctrl-C too: the next request would get this answer
            self.end()
            raise
        return {"died": self.end(MAX_EXIT_S)} if answer is None else answer

    def end(self, wait_s: float = 0.0) -> str:
        """Ends the process, and returns how it ended, in the words of ``describe_status``.

        First, the process has ``wait_s`` seconds to end by itself. Then it is killed, with all processes that it
        started. Without a process, returns ``nothing``.
        """
        if self._process is None:
            return "nothing"
        self._ended_s = self.processor_s
        process, self._process = self._process, None
        if wait_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)
        _kill(process)
        status = process.wait()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        os.close(self._answers)
        return describe_status(status)

    def _send(self, request: Mapping[str, Any]) -> None:
        """Sends a request. If the process has ended, raises nothing, and no answer comes."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _next_answer(self, limit_s: float) -> dict[str, Any] | None:
        """Returns the next answer, or None if the process ended.

        Raises:
            TimeoutError: there was no answer within ``limit_s``.
        """
        line, newline, self._text = read_line(self._answers, limit_s, self._text).partition(b"\n")
        answer: dict[str, Any] | None = json.loads(line) if newline else None
        return answer


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # its group has all processes that it started, such as compilers
        os.killpg(process.pid, signal.SIGKILL)


def read_line(descriptor: int, limit_s: float, text: bytes = b"") -> bytes:
    """Reads until the text has a whole line, or until the input ends. Returns the text, which may have further lines.

    Args:
        descriptor: the descriptor to read.
        limit_s: how many seconds reading may take.
        text: what was read before. The new text is appended to it.

    Raises:
        TimeoutError: neither a whole line nor the end came within ``limit_s``.
    """
    end = time.monotonic() + limit_s
    while b"\n" not in text:
        left_s = end - time.monotonic()
        if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
            raise TimeoutError
        more = os.read(descriptor, 65536)
        if not more:
            break
        text += more
    return text


def describe_status(status: int) -> str:
    """Returns words for how a process ended, made from the return code that ``subprocess`` reports."""
    return signal.Signals(-status).name if status < 0 else f"exit code {status}"
