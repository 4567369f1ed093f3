"""Runs executables of the package as real processes, and looks at their resources."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil
from ament_index_python.packages import get_package_prefix
from ros_support import START_S, wait_until

from split_infer_ros.engines.engine import Engine

LIGHT = ("-p", "engine:=onnxruntime") if Engine.ONNXRUNTIME.is_installed else ("-p", "weights:=none")
"""ROS arguments with which backbone and head start soonest: without torch, whose import takes seconds, if they can."""

END_S = 20.0  # how long a process may take to end by itself before it is killed


def shared_memory_of(process: int) -> set[Path]:
    """Returns the files of Fast DDS's shared memory that a process maps. Leaves out ports, which a domain shares."""
    try:
        words = Path(f"/proc/{process}/maps").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return {Path(word) for word in words if word.startswith("/dev/shm/fast") and "_port" not in word}


class Process:
    """An executable of the package, started as ``ros2 run`` does. Its output is kept.

    At the end of the ``with`` block, it gets SIGTERM. If it does not end within ``END_S`` seconds, it is killed.

    Attributes:
        segments: the files of Fast DDS's shared memory that ``record_segments`` found.
    """

    def __init__(self, executable: str, *arguments: str) -> None:
        path = Path(get_package_prefix("split_infer_ros"), "lib/split_infer_ros", executable)
        self._printed = tempfile.TemporaryFile("w+")
        self._others = shared_memory_of(os.getpid())  # the shared memory of the test process, which stays
        self._popen = subprocess.Popen(
            [sys.executable, path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.segments: set[Path] = set()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A killed process can leave nodes of other test files unable to receive, see test/helpers/domains.py.
        self._popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(END_S)
        self.kill()

    def kill(self) -> None:
        """Kills the process and all processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self._printed.close()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    @property
    def printed(self) -> str:
        """Everything that the process has printed so far."""
        self._printed.seek(0)
        return self._printed.read()

    @property
    def runs(self) -> bool:
        """False once the process has ended."""
        return self._popen.poll() is None

    @property
    def handles_sigterm(self) -> bool:
        """True once the process handles SIGTERM itself, or has ended."""
        caught = self._status().partition("SigCgt:")[2].split() or ["0"]
        return not self.runs or bool(int(caught[0], 16) >> (signal.SIGTERM - 1) & 1)

    def maps(self, name: str) -> bool:
        """Returns whether the process has mapped a file with ``name`` in its path, such as a library, or has ended."""
        return not self.runs or name in self._status("maps")

    def record_segments(self) -> None:
        """Records in ``segments`` which shared memory of Fast DDS the process maps: its own, and that of others."""
        self.segments = shared_memory_of(self._popen.pid) - self._others

    @property
    def slot_segments(self) -> set[Path]:
        """The files in shared memory with slots that the process has mapped."""
        return {Path(word) for word in self._status("maps").split() if word.startswith("/dev/shm/split_infer_")}

    @property
    def leftovers(self) -> list[str]:
        """What the ended process has left behind: shared memory of Fast DDS, and processes that it started.

        It is correct only once all other processes of the domain have ended too.
        """
        left = [str(segment) for segment in self.segments if segment.exists()]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, 0)
            left.append(f"process group {self._popen.pid}")
        return left

    def _status(self, file: str = "status") -> str:
        try:
            return Path(f"/proc/{self._popen.pid}/{file}").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return ""

    def send(self, number: int) -> None:
        """Sends the process a signal."""
        self._popen.send_signal(number)

    def wait(self, seconds: float = START_S) -> int:
        """Waits until the process has ended, and returns its exit code.

        Raises:
            AssertionError: it still runs after ``seconds`` seconds.
        """
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {seconds:g} s; it printed:\n{self.printed}") from None

    def wait_until_printed(self, words: str, seconds: float = START_S) -> None:
        """Waits until the process has printed ``words``.

        Raises:
            AssertionError: it has not printed them after ``seconds`` seconds, or has ended before.
        """
        wait_until(lambda: words in self.printed or not self.runs, f"'{words}' printed", seconds)
        assert words in self.printed, self.printed


@dataclass(frozen=True)
class Footprint:
    """The resources that a process holds, as the operating system sees them.

    Attributes:
        at: when they were counted, in seconds of the steady clock.
        memory: the resident memory, in bytes.
        threads: the number of threads.
        files: the number of open files.
        segments: the number of mapped files in shared memory.
    """

    at: float
    memory: int
    threads: int
    files: int
    segments: int

    @classmethod
    def of(cls, pid: int) -> Footprint:
        """Returns the present footprint of a process."""
        process = psutil.Process(pid)
        mapped = {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm" in line}
        return cls(time.monotonic(), process.memory_info().rss, process.num_threads(), process.num_fds(), len(mapped))
