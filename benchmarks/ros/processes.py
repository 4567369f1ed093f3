"""Starts nodes in processes of their own, and says for how many seconds rivals take turns."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.common.report import seconds_for_turns
from split_infer_ros.nodes.process import PROFILE_VARIABLES

PROFILE = Path(__file__).parents[2] / "config" / "fastdds.xml"
STOP_S = 10.0
ENDING_S = 3.0


def seconds_of_turns(chosen: argparse.Namespace, full_s: float) -> float:
    """Returns for how many seconds rivals take turns; see ``seconds_for_turns``.

    In a quick run, ``ENDING_S`` seconds are left for all processes to end.
    """
    left = seconds_for_turns(chosen, full_s)
    return max(0.0, left - ENDING_S) if chosen.quick else left


def set_up_middleware() -> None:
    """Selects a ROS domain that is rarely used, and the shipped Fast DDS profile unless the user has one."""
    os.environ["ROS_DOMAIN_ID"] = str(random.randint(90, 101))
    os.environ.setdefault(PROFILE_VARIABLES[0], str(PROFILE))


class Processes:
    """Starts nodes in processes of their own. The end of the ``with`` block ends all processes."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Processes:
        return self

    def start(
        self,
        command: Sequence[str],
        namespace: str,
        name: str | None = None,
        remap: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        **parameters: Any,
    ) -> int:
        """Runs a Python command that starts nodes. Returns its process id.

        Args:
            command: the arguments of the Python interpreter.
            namespace: the namespace of the nodes.
            name: the node's new name. None: it keeps its own.
            remap: new names of topics, by their old names.
            environment: variables that are set only for this process.
            parameters: the parameters of the nodes.
        """
        ros = ["--ros-args", "-r", f"__ns:=/{namespace}", "--log-level", "warn"]
        if name is not None:
            ros += ["-r", f"__node:={name}"]
        for topic, other in (remap or {}).items():
            ros += ["-r", f"{topic}:={other}"]
        for parameter, value in parameters.items():
            ros += ["-p", f"{parameter}:={json.dumps(value)}"]
        return self.run([sys.executable, *command, *ros], environment)

    def run(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Runs any command, with environment variables that are set only for it. Returns its process id."""
        self._started.append(subprocess.Popen(command, env={**os.environ, **(environment or {})}))
        return self._started[-1].pid

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
