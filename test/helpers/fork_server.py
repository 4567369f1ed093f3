"""Starts nodes as real processes quickly: a process that has imported everything forks them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from ros_processes import shared_memory_of
from ros_support import START_S, wait_until

PROGRAM = """
import gc, json, os, pathlib, signal, sys
import torch
from split_infer_ros.buffers import segment
from split_infer_ros.nodes import backbone, head, process
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
mains = {"backbone": backbone.main, "head": head.main}
torch.set_num_threads(1)
model = load_model(ModelSpec("shapes", "none"))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
children = []
start_nodes = process.start_nodes
def start_on_signal(nodes):
    signal.sigwait({signal.SIGUSR1})
    start_nodes(nodes)
gc.collect()
gc.freeze()  # a collection of a forked node would write to, and so copy, the memory that it shares
for line in sys.stdin:
    name, log, folder, paused, arguments, variables = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        if paused:
            process.start_nodes = start_on_signal
        segment.FOLDER = pathlib.Path(folder)
        os.environ.clear()
        os.environ.update(variables)
        sys.argv = [name, *arguments]
        code = mains[name]()
        sys.stdout.flush()
        os._exit(code)
    children.append(child)
    print(child, flush=True)
    children = [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]
for child in children:  # the test that started them was killed
    os.kill(child, signal.SIGKILL)
"""


class NodeProcess:
    """A forked node. Its output goes to a log file."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self._log = log

    @property
    def printed(self) -> str:
        """Everything that the node has printed so far."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def runs(self) -> bool:
        """False once the process has ended with all its threads."""
        process = Path(f"/proc/{self.pid}")
        try:  # a process holds its files and their locks until its last thread has ended
            return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z" or any(
                thread.name != str(self.pid) for thread in (process / "task").iterdir()
            )
        except (FileNotFoundError, ProcessLookupError):
            return False

    def resume(self) -> None:
        """Lets a paused node configure itself and start."""
        os.kill(self.pid, signal.SIGUSR1)

    def end(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal and waits until the process has ended."""
        if self.runs:
            os.kill(self.pid, number)
        wait_until(lambda: not self.runs, f"the end of {self.pid}: {self.printed}", START_S)


class Forker:
    """A process that has imported everything, which takes seconds. All tests of a file can share it.

    It takes no part in ROS, so each node that it forks starts ROS as a new process does.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Forker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def fork(self, executable: str, log: Path, folder: Path, paused: bool, arguments: list[str]) -> int:
        """Forks a node that gets the environment variables of this process. Returns the node's process id.

        Args:
            executable: ``backbone`` or ``head``.
            log: the file to which the node's output is added.
            folder: the folder for the node's own shared memory.
            paused: whether the node waits for SIGUSR1 before it configures itself.
            arguments: the node's arguments.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        command = executable, str(log), str(folder), paused, arguments, dict(os.environ)
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


class ForkServer:
    """Forks nodes. Leaving the context kills those that still run, and removes the files that Fast DDS kept of them.

    Args:
        folder: the folder for the nodes' own shared memory, in place of /dev/shm.
        forker: the process that forks them.
    """

    def __init__(self, folder: Path, forker: Forker) -> None:
        self._own_segments = shared_memory_of(os.getpid())
        self._node_segments: set[Path] = set()
        self._shared_memory, self._forker = folder, forker
        self._folder = tempfile.TemporaryDirectory()
        self._nodes: list[NodeProcess] = []

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self._nodes:
            self.kill(node)
        for path in self._node_segments:
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}_el").unlink(missing_ok=True)
        self._folder.cleanup()

    def start(
        self, executable: str, paused: bool = False, name: str = "", namespace: str = "", **parameters: object
    ) -> NodeProcess:
        """Starts a node with weights ``none`` and engine ``torch``, so that it does not compare engines.

        Args:
            executable: ``backbone`` or ``head``.
            paused: whether the node waits for ``resume`` before it configures itself. DDS discovers it meanwhile.
            name: the name of the node; empty for its own.
            namespace: the namespace of the node; empty for the root namespace.
            parameters: the parameters of the node.
        """
        log = Path(self._folder.name, f"{len(self._nodes)}.log")
        arguments = ["--ros-args", "-p", "weights:=none", "-p", "engine:=torch"]
        if name:
            arguments += ["-r", f"__node:={name}"]
        if namespace:
            arguments += ["-r", f"__ns:={namespace}"]
        for key, value in parameters.items():
            arguments += ["-p", f"{key}:={value}"]
        self._nodes.append(NodeProcess(self._forker.fork(executable, log, self._shared_memory, paused, arguments), log))
        return self._nodes[-1]

    def kill(self, node: NodeProcess) -> None:
        """Kills a node with SIGKILL."""
        self._node_segments |= shared_memory_of(node.pid) - self._own_segments
        node.end()
