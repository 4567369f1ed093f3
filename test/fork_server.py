"""Nodes as real processes that start at once: forked from one that has imported everything and begun nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from ros_support import START_S, shared_memory_of, wait_until

PROGRAM = """
import json, os, pathlib, signal, sys
import torch
from split_infer_ros.buffers import segment
from split_infer_ros.nodes import backbone, head, managed
from split_infer_ros.split.load import load_model
mains = {"backbone": backbone.main, "head": head.main}
segment.FOLDER = pathlib.Path(sys.argv[1])
torch.set_num_threads(1)
model = load_model("shapes", "none", "auto")
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
children = []
start = managed.ManagedNode.start
def start_when_told(node):
    signal.sigwait({signal.SIGUSR1})
    start(node)
for line in sys.stdin:
    name, log, waits, arguments = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        if waits:
            managed.ManagedNode.start = start_when_told
        sys.argv = [name, *arguments]
        code = mains[name]()
        sys.stdout.flush()
        os._exit(code)
    children.append(child)
    print(child, flush=True)
    children = [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]
for child in children:  # whoever asked for them was ended in mid-test
    os.kill(child, signal.SIGKILL)
"""


class NodeProcess:
    """A forked node; what it prints is in its log."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self._log = log

    @property
    def printed(self) -> str:
        """All that it printed so far."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def runs(self) -> bool:
        """False once it has ended."""
        process = Path(f"/proc/{self.pid}")
        try:  # until its last thread is gone, it holds its files and their locks
            return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z" or any(
                thread.name != str(self.pid) for thread in (process / "task").iterdir()
            )
        except (FileNotFoundError, ProcessLookupError):
            return False

    def resume(self) -> None:
        """Have one that waits begin."""
        os.kill(self.pid, signal.SIGUSR1)

    def end(self, number: int = signal.SIGKILL) -> None:
        """Send a signal and wait until it is gone."""
        if self.runs:
            os.kill(self.pid, number)
        wait_until(lambda: not self.runs, f"the end of {self.pid}: {self.printed}", START_S)


class ForkServer:
    """Where nodes are born; all that are still there die with it, and Fast DDS's files of those that were killed.

    Args:
        folder: in the place of /dev/shm, for the nodes' own shared memory.
    """

    def __init__(self, folder: Path) -> None:
        self._others = shared_memory_of(os.getpid())
        self._theirs: set[Path] = set()
        self._folder = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._born: list[NodeProcess] = []

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self._born:
            self.kill(node)
        self._process.kill()
        self._process.communicate()
        for path in self._theirs:
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}_el").unlink(missing_ok=True)
        self._folder.cleanup()

    def start(self, kind: str, waits: bool = False, name: str = "", **parameters: object) -> NodeProcess:
        """A node, ``backbone`` or ``head``, with these parameters; weights are ``none``. It may have another name.

        One that ``waits`` gets to know the others, and configures and activates itself once it is told to go.
        """
        log = Path(self._folder.name, f"{len(self._born)}.log")
        arguments = ["--ros-args", "-p", "weights:=none"]
        if name:
            arguments += ["-r", f"__node:={name}"]
        for key, value in parameters.items():
            arguments += ["-p", f"{key}:={value}"]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([kind, str(log), waits, arguments]) + "\n")
        self._process.stdin.flush()
        self._born.append(NodeProcess(int(self._process.stdout.readline()), log))
        return self._born[-1]

    def kill(self, node: NodeProcess) -> None:
        """As ``kill -9`` does."""
        self._theirs |= shared_memory_of(node.pid) - self._others
        node.end()
