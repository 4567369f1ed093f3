from __future__ import annotations

import math
from dataclasses import replace

import pytest
from assumed_boards import AGX, MB, TABLE_IV, TX2, drawn_machines, drawn_tasks, workload
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.memory_cost.choose import choose
from split_infer_ros.memory_cost.constants import ALL_CONSTANTS, MachineConstants
from split_infer_ros.memory_cost.task import Task

D, M, H = POLICIES
LETTER = {D: "D", M: "M", H: "H"}


@pytest.mark.parametrize("task", TABLE_IV, ids=lambda task: task.name)
def test_table_iv_is_reproduced(task: Task) -> None:
    assert "".join(LETTER[choose(task, machine).policy] for machine in (TX2, AGX)) == TABLE_IV[task]


def test_the_papers_selection_guidelines_hold() -> None:
    """Much data makes D expensive, many kernels make M expensive, and much use of the cache makes H expensive."""
    assert choose(workload("little data", 64, MB, 0), AGX).policy is D
    assert choose(workload("much data", 64, 256 * MB, 0), AGX).policy is M
    assert choose(workload("many kernels", 4096, 256 * MB, 0), AGX).policy is D
    streaming = replace(workload("streaming", 64, 256 * MB, 0))
    kernels = tuple(replace(kernel, cached_bytes=0) for kernel in streaming.kernels)
    assert choose(replace(streaming, kernels=kernels), AGX).policy is H


def test_the_reason_lists_all_predictions() -> None:
    choice = choose(workload("NN", 1, 8 * MB, 4 * MB), TX2, [D, H])
    assert choice.policy is D
    assert choice.overheads[M].total_ms == pytest.approx(12e6 * 2e-8 + 0.004 + 0.004)
    assert choice.reason == (
        "device has the least overhead: device 4.9 ms, managed 0.248 ms (not legal here), pinned 9.28 ms."
    )


def test_of_equal_policies_the_smaller_footprint_wins() -> None:
    assert choose(Task("nothing to do", 0, 0, (), copies=0), TX2).policy is D
    free = MachineConstants(*[0.0] * len(ALL_CONSTANTS))
    assert choose(workload("free", 1, MB, 0), free).policy is M


def test_an_unknown_overhead_is_not_chosen() -> None:
    task = workload("NN", 1, 8 * MB, 4 * MB)
    assert choose(task, replace(TX2, cpu_flush_ms=math.nan)).policy is D
    blind = choose(task, replace(TX2, copy_start_ms=math.nan))
    assert blind.policy is D
    assert blind.reason.startswith("device is the default; its overhead is not known: device unknown, managed 0.248")
    assert choose(task, MachineConstants(), [H, M]).policy is M
    with pytest.raises(ConfigurationError, match="NN has no memory policy: none is legal here"):
        choose(task, TX2, [])


@given(drawn_tasks, drawn_machines, st.sets(st.sampled_from(POLICIES), min_size=1))
def test_the_choice_is_the_cheapest_legal_policy(task: Task, machine: MachineConstants, legal: set[Policy]) -> None:
    choice = choose(task, machine, legal)
    assert choice.policy in legal
    assert choice.overheads[choice.policy].total_ms == min(choice.overheads[policy].total_ms for policy in legal)
