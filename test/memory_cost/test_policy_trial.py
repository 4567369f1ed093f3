"""The trial of memory policies, on the simulated GPU."""

from __future__ import annotations

import pytest
from simulated_gpu import GPU, Gpu

from split_infer_ros.buffers.host_arrays import FLOAT16, FLOAT32
from split_infer_ros.buffers.layout import Layout, TensorSpec
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import POLICIES
from split_infer_ros.buffers.pool import SlotPool
from split_infer_ros.buffers.shared_pool import SharedSlotPool
from split_infer_ros.memory_cost.policy_trial import Trial, time_policies

LAYOUT = Layout([TensorSpec("x", (3, 2, 2), FLOAT32), TensorSpec("y", (5,), FLOAT16)], 4)
D, M, H = POLICIES


def test_trial_times_each_policy_that_has_room(gpu: Gpu) -> None:
    found = time_policies(POLICIES, LAYOUT, Trial(GPU))
    assert set(found) == set(POLICIES)
    assert all(0 < seconds < 1 for seconds in found.values())
    gpu.page_lockable = 0
    assert set(time_policies(POLICIES, LAYOUT, Trial(GPU))) == {M}


def test_trial_is_in_memory_of_the_kind_that_is_used(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared slots are tried in shared memory. Device memory that must serve other policies is tried as such."""
    made: list[tuple[type, Place]] = []
    for kind in (SlotPool, SharedSlotPool):
        allocate = kind.allocate

        def note(layout: Layout, slots: int, place: Place, *, kind=kind, allocate=allocate):  # type: ignore[no-untyped-def]
            made.append((kind, place))
            return allocate(layout, slots, place)

        monkeypatch.setattr(kind, "allocate", note)
    time_policies([D, H], LAYOUT, Trial(GPU, shared=True))
    time_policies(POLICIES, LAYOUT, Trial(GPU, switches=True))
    assert [kind for kind, _ in made] == [SharedSlotPool] * 2 + [SlotPool] * 3
    assert [place.switchable for _, place in made] == [False] * 2 + [place.policy is D for _, place in made[2:]]
