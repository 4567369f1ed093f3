"""The errors of a GPU that is lost, and the package's nodes as a process that loses one.

As a script: ``lost_device.py NODE MOMENT [ROS arguments]`` runs an executable whose device is lost at that moment.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

ILLEGAL_ADDRESS = 700
BATCHES = 12  # so many pass before the device is lost, with those of warming up
AT_START, LATER, HANGS = "at_start", "later", "hangs"
SAID = "the device was lost at"
LOSE_WHEN = "LOSE_WHEN"  # an environment variable: the device is lost once the file of that name is there


class AcceleratorError(RuntimeError):
    """As torch's of that name, which torch 2.6 does not have yet."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"CUDA error: {text}\nCUDA kernel errors might be asynchronously reported at another call.")
        self.error_code = code


def illegal_access() -> AcceleratorError:
    """What torch raises at each call once a kernel has gone astray."""
    return AcceleratorError(ILLEGAL_ADDRESS, "an illegal memory access was encountered")


class LostDevice:
    """Stands in for a device: works as long as it is told to, then refuses every call as CUDA does.

    Args:
        left: pieces of work that it does by itself.
    """

    def __init__(self, left: float = math.inf) -> None:
        self.left = left
        self.lost = False

    def use(self) -> None:
        """One piece of work."""
        self.left -= 1
        if self.left < 0:
            if not self.lost:
                print(SAID, time.monotonic(), flush=True)
            self.lost = True
            refuse()


def refuse() -> NoReturn:
    """Any call to a device that is lost."""
    raise illegal_access()


def hang() -> NoReturn:
    """A call that never returns."""
    threading.Event().wait()
    raise AssertionError


@cache  # once a process, however many nodes load the model
def lose(moment: str) -> None:
    """Have the nodes of this process lose their device.

    Args:
        moment: ``LATER``: after some batches, or when ``LOSE_WHEN`` says; ``AT_START``: before the first; ``HANGS``:
            later, and giving memory back then never ends.
    """
    from split_infer_ros.buffers.slot_memory import SlotMemory
    from split_infer_ros.pipeline.plan import Plan
    from split_infer_ros.serving.executor import Executor

    signal = os.environ.get(LOSE_WHEN)
    device = LostDevice(0 if moment == AT_START or signal else BATCHES)
    run, launch, close = Plan.run, Executor._launch, SlotMemory.close

    def use() -> None:
        if signal is None or Path(signal).exists():
            device.use()

    def run_on_it(*arguments: Any, **named: Any) -> Any:
        use()
        return run(*arguments, **named)

    def launch_on_it(*arguments: Any) -> Any:
        use()
        return launch(*arguments)

    def close_on_it(memory: SlotMemory) -> None:
        if device.lost:
            hang() if moment == HANGS else refuse()
        close(memory)

    Plan.run, Executor._launch, SlotMemory.close = run_on_it, launch_on_it, close_on_it  # type: ignore[method-assign]


def model() -> Any:
    """A user's model (``model:=lost_device:model``) that takes the device of its process along."""
    from torch import nn

    lose(LATER)
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))


if __name__ == "__main__":
    node, moment, *arguments = sys.argv[1:]
    lose(moment)
    sys.argv = [node, *arguments]
    sys.exit(importlib.import_module(f"split_infer_ros.nodes.{node}").main())
