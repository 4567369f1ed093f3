"""Pairs of §IV-B, under constants that make the arithmetic plain."""

from __future__ import annotations

import math
from dataclasses import replace

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_model.constants import MachineConstants
from split_infer_ros.memory_model.task import Kernel, Task
from split_infer_ros.tenancy.co_run import Released, release

# A byte is copied in 1 ms and mapped in 1 ms under M, in 2 under H; a launch under M costs 1 ms besides.
UNIT = MachineConstants(0.0, 1.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 0.0)
D, M = Policy.DEVICE, Policy.MANAGED


def task(name: str, execution_ms: float, data: int = 20) -> Task:
    """O_D = data; O_M = 10 * (3 + 1), of which 30 are idle, so that Eq. 9 holds for 20 bytes of data and more."""
    return Task(name, data, 0, (Kernel(3),) * 10, copies=1, execution_ms=execution_ms)


def test_the_same_task_has_another_policy_beside_a_neighbour() -> None:
    """The paper's example: YOLO_A alone takes D; followed by YOLO_B, the two are co-run under D and M."""
    first, second = task("YOLO_A", 25), task("YOLO_B", 25)
    assert release([first], UNIT) == (Released(first, D),)
    assert release([first, second], UNIT) == (Released(first, D), Released(second, M))


def test_the_first_may_be_the_one_whose_idle_time_is_used() -> None:
    long, short = task("long", 100), task("short", 10, data=1)  # Eq. 9 does not hold for the short one
    assert release([long, short], UNIT) == (Released(long, M), Released(short, D))


def test_what_does_not_fit_stays_and_a_later_one_may_go_first() -> None:
    first, too_long, fits = task("first", 100, data=1), task("too long", 31, data=1), task("fits", 20)
    assert release([first, too_long], UNIT) == (Released(first, D),)
    assert release([task("f", 100), too_long, fits], UNIT)[1] == Released(fits, D)


def test_where_a_constant_is_not_known_nothing_is_co_run() -> None:
    unknown = replace(UNIT, managed_mapping_ms_per_byte=math.nan)
    assert [found.policy for found in release([task("a", 1), task("b", 1)], unknown)] == [D]
