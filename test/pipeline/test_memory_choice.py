"""Which policy is taken: as asked for, or as the model predicts and a trial confirms."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Mapping, Sequence

import pytest
import torch
from simulated_gpu import GPU, Gpu

from split_infer_ros.buffers.layout import Layout, TensorSpec
from split_infer_ros.buffers.policy import AUTO, POLICIES, Policy
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.pipeline import memory_choice
from split_infer_ros.pipeline.memory_choice import MemoryAdvisor, time_policies

CPU = torch.device("cpu")
LAYOUT = Layout([TensorSpec("x", (3, 2, 2), torch.float32), TensorSpec("y", (5,), torch.float16)], 4)
D, M, H = POLICIES


class Trial:
    """Notes what is asked of it."""

    def __init__(self, seconds: Mapping[Policy, float]) -> None:
        self.seconds = seconds
        self.asked: list[tuple[Policy, ...]] = []

    def __call__(self, policies: Sequence[Policy], layout: Layout, device: torch.device) -> dict[Policy, float]:
        self.asked.append(tuple(policies))
        return {policy: self.seconds[policy] for policy in policies if policy in self.seconds}


@pytest.fixture
def pinned_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants of a machine where copies are dear and reaching over is cheap."""
    zeros = MachineConstants(**{field.name: 0.0 for field in dataclasses.fields(MachineConstants)})
    constants = dataclasses.replace(zeros, copy_start_ms=1.0, cpu_flush_ms=0.5)
    calibrated = type("Calibration", (), {"constants": constants})
    monkeypatch.setattr(memory_choice, "calibrate_machine", lambda device, database: calibrated)


@pytest.mark.parametrize("name", [*(policy.value for policy in POLICIES), AUTO])
@pytest.mark.parametrize("shared", [True, False])
def test_on_a_cpu_all_memory_is_plain(name: str, shared: bool) -> None:
    choice = MemoryAdvisor(CPU).choose(name, LAYOUT, shared)
    assert (choice.policy, choice.reason) == (Policy.HOST, "the backbone runs on the CPU")


def test_an_unknown_policy_is_refused_on_a_cpu_too() -> None:
    with pytest.raises(ConfigurationError, match="device, managed, pinned, auto"):
        MemoryAdvisor(CPU).choose("fast", LAYOUT, False)


def test_what_is_named_is_taken_untried(gpu: Gpu) -> None:
    trial = Trial({})
    advisor = MemoryAdvisor(GPU, trial=trial)
    for policy in POLICIES:
        assert advisor.choose(policy.value, LAYOUT, False).policy is policy
    assert trial.asked == []
    gpu.absent.add("cudaDevAttrManagedMemory")
    memory_choice.cuda.device_attributes.cache_clear()
    with pytest.raises(ConfigurationError, match="managedMemory is 0"):
        advisor.choose("managed", LAYOUT, False)


def test_a_prediction_that_the_trial_confirms_is_taken_and_both_are_told(gpu: Gpu, pinned_is_best: None) -> None:
    trial = Trial({D: 2.00e-3, M: 0.98e-3, H: 1e-3})
    choice = MemoryAdvisor(GPU, trial=trial).choose(AUTO, LAYOUT, False)
    assert choice.policy is H
    assert "pinned has the least overhead: device 1 ms, managed 0.5 ms, pinned 0 ms" in choice.reason
    assert choice.reason.endswith("tried: device 2 ms, managed 0.98 ms, pinned 1 ms")


def test_a_prediction_that_the_trial_belies_gives_way(gpu: Gpu, pinned_is_best: None) -> None:
    choice = MemoryAdvisor(GPU, trial=Trial({D: 2e-3, M: 1e-3, H: 1.2e-3})).choose(AUTO, LAYOUT, False)
    assert choice.policy is M
    choice = MemoryAdvisor(GPU, trial=Trial({D: 2e-3})).choose(AUTO, LAYOUT, False)  # the others had no room
    assert choice.policy is D
    with pytest.raises(ConfigurationError, match="no room for one slot of"):
        MemoryAdvisor(GPU, trial=Trial({})).choose(AUTO, LAYOUT, False)


def test_only_what_is_legal_is_tried_and_once_for_each_size(gpu: Gpu, pinned_is_best: None) -> None:
    gpu.absent.add("cudaDevAttrPageableMemoryAccess")
    trial = Trial(dict.fromkeys(POLICIES, 1e-3))
    advisor = MemoryAdvisor(GPU, trial=trial)
    for _ in range(3):
        assert advisor.choose(AUTO, LAYOUT, True).policy is H
    advisor.choose(AUTO, LAYOUT, False)
    advisor.choose(AUTO, Layout(LAYOUT.specs, 99), False)
    assert trial.asked == [(D, H), POLICIES, POLICIES]


def test_beside_another_pipeline_a_smaller_policy_is_taken_though_the_trial_finds_it_slower(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Guidelines 1 and 2: alone D costs a millisecond less than M, whose mapping the other's kernels overlap."""
    constants = MachineConstants(0.0, 1.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    calibrated = type("Calibration", (), {"constants": constants})
    monkeypatch.setattr(memory_choice, "calibrate_machine", lambda device, database: calibrated)
    first, second = (MemoryAdvisor(GPU, trial=Trial({D: 1e-3, M: 2e-3, H: 3e-3})) for _ in range(2))
    assert first.choose(AUTO, LAYOUT, False).policy is D
    first.note_in_use(LAYOUT, D)
    choice = second.choose(AUTO, LAYOUT, False)
    assert choice.policy is M
    assert "enough kernels of policy device remain (Eq. 11)" in choice.reason
    second.note_in_use(LAYOUT, M)
    assert first.choose(AUTO, LAYOUT, False).policy is D, "one of the two is enough"
    first.note_in_use(LAYOUT, H)
    assert second.choose(AUTO, LAYOUT, False).policy is D
    first.note_in_use(LAYOUT, D)
    del first  # with its pipeline
    gc.collect()
    assert second.choose(AUTO, LAYOUT, False).policy is D
    roomless = MemoryAdvisor(GPU, trial=Trial({D: 1e-3}))
    second.note_in_use(LAYOUT, D)
    assert roomless.choose(AUTO, LAYOUT, False).policy is D


def test_the_trial_times_each_policy_for_which_there_is_room(gpu: Gpu) -> None:
    found = time_policies(POLICIES, LAYOUT, GPU)
    assert set(found) == set(POLICIES)
    assert all(0 < seconds < 1 for seconds in found.values())
    gpu.page_lockable = 0
    assert set(time_policies(POLICIES, LAYOUT, GPU)) == {M}
