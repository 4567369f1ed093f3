"""Binds threads to sets of cores: one set for backbones, another for heads (paper 000, §5.4).

Linux keeps a set for each thread, and a new thread inherits the set of the thread that starts it. So whoever builds or
starts a stage is bound meanwhile. All threads of the stage, those of its engine included, then have the stage's cores.

OpenVINO's library for threads, TBB, binds a thread to all cores of the process during each call. It does so by the
library hwloc. hwloc binds nothing if an environment variable says that the machine is another one.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from split_infer_ros.errors import ConfigurationError

CPUS = Path("/sys/devices/system/cpu")
MAX_NUMBER = 8191  # Linux supports no more processors
_AT_START = frozenset(os.sched_getaffinity(0))
_local = threading.local()  # outer: a thread's cores outside of ``bound``
HWLOC_BINDS = "HWLOC_THISSYSTEM"  # 0: hwloc binds no threads


@dataclass(frozen=True, slots=True)
class Cores:
    """A set of cores, by Linux's numbers of processors. A set without numbers binds nothing.

    Attributes:
        numbers: the numbers.
        name: the name of the setting that chose them, for sentences.
    """

    numbers: frozenset[int] = frozenset()
    name: str = field(default="cores", compare=False)

    @classmethod
    def parse(cls, text: str, name: str) -> Cores:
        """Returns the set that a text lists, such as ``0-3,6``. An empty text means a set that binds nothing.

        From then on, hwloc binds no threads of this process, unless the user's environment says otherwise. Call this
        before OpenVINO is imported.

        Args:
            text: numbers and ranges, separated by commas.
            name: the name of the setting, for errors.

        Raises:
            ConfigurationError: the text is no such list, or the process could not use one of the cores at its start.
        """
        numbers: set[int] = set()
        for item in text.split(",") if text.strip() else ():
            match = re.fullmatch(r" *([0-9]{1,4}) *(?:- *([0-9]{1,4}) *)?", item)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if not first <= last <= MAX_NUMBER:
                raise ConfigurationError(
                    f"{name} cannot be {text!r}; it takes numbers of processors and ranges, such as 0-3,6."
                )
            numbers.update(range(first, last + 1))
        barred = numbers - _AT_START
        if barred:
            raise ConfigurationError(
                f"{name} cannot be {text!r}; this process may use {as_text(_AT_START)}, not {as_text(barred)}."
            )
        if numbers:
            os.environ.setdefault(HWLOC_BINDS, "0")
        return cls(frozenset(numbers), name)

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def __str__(self) -> str:
        return as_text(self.numbers)

    def or_outer(self) -> Cores:
        """Returns these cores. If there are none, returns those that the calling thread has outside of ``bound``."""
        return self or Cores(getattr(_local, "outer", None) or frozenset(os.sched_getaffinity(0)))

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Binds the calling thread to these cores during a ``with`` block, and so all threads that it starts in it.

        If the process may use only some of them now, the thread gets those; with none of them, it stays as it was.
        """
        before = frozenset(os.sched_getaffinity(0))
        if not self.numbers or self.numbers == before:
            yield
            return
        outer = getattr(_local, "outer", None)
        _local.outer = outer or before
        with suppress(OSError):  # none of them is left
            os.sched_setaffinity(0, self.numbers)
        try:
            yield
        finally:
            _local.outer = outer
            with suppress(OSError):
                os.sched_setaffinity(0, before)

    @property
    def lost(self) -> frozenset[int]:
        """Those of these cores that the process may not use: a container's limit changed, or one was switched off."""
        if not self.numbers:
            return frozenset()
        with ThreadPoolExecutor(1) as thread:  # the set of a thread that tries stays small, once a limit made it small
            return self.numbers - thread.submit(self._tried).result()

    def _tried(self) -> set[int]:
        """Returns the cores that the calling thread gets if it asks for these."""
        with self.bound():
            return os.sched_getaffinity(0)

    @property
    def fault(self) -> str:
        """A sentence about cores that the process may not use any more; empty if it may use all of them."""
        lost = self.lost
        if not lost:
            return ""
        left = self.numbers - lost
        rest = f"its threads run on {as_text(left)}" if left else "its threads run on any core"
        return f"{self.name} {self}: this process may not use {as_text(lost)} any more, so {rest}."


ANY_CORE = Cores()


@dataclass(frozen=True, slots=True)
class StageCores:
    """The cores of the two stages of a pipeline.

    Attributes:
        backbone, head: the cores of all threads of the stage.
        outer: the cores of the thread that made this object, outside of ``Cores.bound``.
    """

    backbone: Cores = Cores()
    head: Cores = Cores()
    outer: Cores = field(default_factory=lambda: ANY_CORE.or_outer(), compare=False)

    @classmethod
    def parse(cls, backbone: str, head: str) -> StageCores:
        """Returns the cores that two parameters list; see ``Cores.parse``.

        Raises:
            ConfigurationError: a text is no list, or the process may not use one of the cores.
        """
        return cls(Cores.parse(backbone, "backbone_cores"), Cores.parse(head, "head_cores"))

    @classmethod
    def of_numbers(cls, numbers: Sequence[Sequence[int]]) -> StageCores:
        """Returns the cores with the ``numbers`` of another process."""
        return cls(*(Cores(frozenset(each)) for each in numbers))

    @property
    def numbers(self) -> list[list[int]]:
        """The numbers of the backbone's cores, of the head's, and of the outer ones."""
        return [sorted(each.numbers) for each in (self.backbone, self.head, self.outer)]

    @property
    def of_head_threads(self) -> Cores:
        """The cores on which the head's threads run; none if no stage has cores of its own."""
        return self.head or (self.outer if self.backbone else ANY_CORE)

    @property
    def fault(self) -> str:
        """A sentence about cores of a stage that the process may not use any more; empty if there are none."""
        return " ".join(filter(None, (self.backbone.fault, self.head.fault)))


ANY_CORES = StageCores()


def num_physical_cores() -> int:
    """Returns the number of cores that the calling thread may use. Two processors of one core count once."""
    return len({_core_of(number, CPUS) for number in os.sched_getaffinity(0)})


def has_other_cores() -> bool:
    """Returns whether the calling thread may use other cores than the process could at its start."""
    return os.sched_getaffinity(0) != _AT_START


def as_text(numbers: Collection[int]) -> str:
    """Returns numbers of processors as Linux lists them, such as ``0-3,6``."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


@cache
def _core_of(number: int, cpus: Path) -> str:
    """Returns a text that is the same for all processors of one core."""
    path = cpus / f"cpu{number}" / "topology" / "thread_siblings_list"
    return path.read_text() if path.exists() else str(number)
