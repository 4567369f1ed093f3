"""Counts the global loads of kernels that Triton interprets. Call it in a process with ``TRITON_INTERPRET=1``.

A load is one element that a program asks for by ``tl.load``. Elements outside of a map count as well, because a GPU
issues the same instruction for them. So all programs of a kernel have as many loads, if the kernel computes one layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock


@dataclass(slots=True)
class LoadCount:
    """The global loads of a launch.

    Attributes:
        programs: how many programs the launch has.
        counted: how many of them were run and counted.
        loads: elements that the counted programs loaded.
    """

    programs: int = 0
    counted: int = 0
    loads: int = 0

    @property
    def all_loads(self) -> int:
        """The loads of all programs, if each has as many as those that were counted."""
        return self.loads * self.programs // self.counted


class _Enough(Exception):
    """Ends a launch before its next program."""


def count_loads(launch: Callable[[], object], max_programs: int | None = None) -> LoadCount:
    """Runs a launch of one kernel and counts its global loads.

    Args:
        launch: launches the kernel on tensors of the CPU.
        max_programs: how many programs are run; None for all. Results of others are undefined.
    """
    from triton.runtime.errors import InterpreterError
    from triton.runtime.interpreter import InterpreterBuilder

    count = LoadCount()
    load, set_grid_idx, set_grid_dim = (
        getattr(InterpreterBuilder, name) for name in ("create_masked_load", "set_grid_idx", "set_grid_dim")
    )

    def counting_load(self: Any, pointers: Any, *others: Any) -> Any:
        count.loads += pointers.data.size
        return load(self, pointers, *others)

    def next_program(self: Any, *place: int) -> None:
        if count.counted == max_programs:
            raise _Enough
        count.counted += 1
        set_grid_idx(self, *place)

    def begin(self: Any, *sizes: int) -> None:
        count.programs += sizes[0] * sizes[1] * sizes[2]
        set_grid_dim(self, *sizes)

    with mock.patch.multiple(
        InterpreterBuilder, create_masked_load=counting_load, set_grid_idx=next_program, set_grid_dim=begin
    ):
        try:
            launch()
        except InterpreterError as error:
            if not isinstance(error.__cause__, _Enough):
                raise
    return count
