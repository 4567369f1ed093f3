"""The errors of a lost GPU, and nodes in a process that loses its GPU.

``lost_device.py NODE MOMENT [ROS arguments]`` runs an executable, which loses its device at ``MOMENT``; see ``lose``.
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
BATCHES = 12  # that pass before the device is lost, including those of warming up
AT_START, LATER, HANGS = "at_start", "later", "hangs"
SAID = "the device was lost at"
LOSE_WHEN = "LOSE_WHEN"  # an environment variable: the device is lost once the file of that name is there


class AcceleratorError(RuntimeError):
    """Stands in for torch.AcceleratorError, which torch 2.6 does not have."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"CUDA error: {text}\nCUDA kernel errors might be asynchronously reported at another call.")
        self.error_code = code


def illegal_access() -> AcceleratorError:
    """Returns the error that torch raises at each call after a kernel accessed a wrong address."""
    return AcceleratorError(ILLEGAL_ADDRESS, "an illegal memory access was encountered")


class LostDevice:
    """Stands in for a device that works for a while and then refuses every call, as CUDA does.

    Args:
        left: how many pieces of work it still does.

    Attributes:
        left: as given, counted down.
        lost: whether it refuses all calls by now.
    """

    def __init__(self, left: float = math.inf) -> None:
        self.left = left
        self.lost = False

    def use(self) -> None:
        """Does one piece of work, or raises the error of a lost device."""
        self.left -= 1
        if self.left < 0:
            if not self.lost:
                print(SAID, time.monotonic(), flush=True)
            self.lost = True
            refuse()


def refuse() -> NoReturn:
    """Raises the error that any call to a lost device raises."""
    raise illegal_access()


def hang() -> NoReturn:
    """Stands in for a call that never returns."""
    threading.Event().wait()
    raise AssertionError


@cache  # once in a process, even if several nodes load the model
def lose(moment: str) -> None:
    """Makes the nodes of this process lose their device.

    Args:
        moment: when the device is lost. ``AT_START``: before the first batch. ``LATER``: after ``BATCHES`` batches, or
            when the file appears that the environment variable ``LOSE_WHEN`` names. ``HANGS``: as ``LATER``, and
            freeing memory then never returns.
    """
    from split_infer_ros.buffers.slot_memory import SlotMemory
    from split_infer_ros.server.executor import Executor
    from split_infer_ros.server.plan import Plan

    signal = os.environ.get(LOSE_WHEN)
    device = LostDevice(0 if moment == AT_START or signal else BATCHES)
    run, launch, close = Plan.run, Executor.launch, SlotMemory.close

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

    Plan.run, Executor.launch, SlotMemory.close = run_on_it, launch_on_it, close_on_it  # type: ignore[method-assign]


def model() -> Any:
    """Returns a user's model, for ``model:=lost_device:model``. The process that loads it loses its device later."""
    from torch import nn

    lose(LATER)
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))


if __name__ == "__main__":
    node, moment, *arguments = sys.argv[1:]
    lose(moment)
    sys.argv = [node, *arguments]
    sys.exit(importlib.import_module(f"split_infer_ros.nodes.{node}").main())
