"""The policy that is chosen: the one asked for, or a predicted one that a trial confirms."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest
from simulated_gpu import GPU, Gpu

from split_infer_ros.buffers.host_arrays import FLOAT16, FLOAT32
from split_infer_ros.buffers.layout import Layout, TensorSpec
from split_infer_ros.buffers.policy import AUTO, POLICIES, Policy
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.memory_cost import memory_choice
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.memory_choice import MemoryAdvisor
from split_infer_ros.memory_cost.policy_trial import Trial
from split_infer_ros.memory_cost.traffic import KernelTraffic
from split_infer_ros.runtime.device import CPU

LAYOUT = Layout([TensorSpec("x", (3, 2, 2), FLOAT32), TensorSpec("y", (5,), FLOAT16)], 4)
D, M, H = POLICIES


class FakeTrial:
    """A trial with given results, which notes the policies of each call."""

    def __init__(self, seconds: Mapping[Policy, float]) -> None:
        self.seconds = seconds
        self.calls: list[tuple[Policy, ...]] = []

    def __call__(self, policies: Sequence[Policy], layout: Layout, trial: Trial) -> dict[Policy, float]:
        self.calls.append(tuple(policies))
        return {policy: self.seconds[policy] for policy in policies if policy in self.seconds}


def set_constants(patch: pytest.MonkeyPatch, **values: float) -> None:
    """Sets the constants to which machines are calibrated; all others are 0."""
    zeros = {field.name: 0.0 for field in dataclasses.fields(MachineConstants)}
    calibration = SimpleNamespace(constants=MachineConstants(**zeros | values))
    patch.setattr(memory_choice, "calibrate_machine", lambda device, database: calibration)


@pytest.fixture
def pinned_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes copies slow and access to the other side's memory fast."""
    set_constants(monkeypatch, copy_start_ms=1.0, cpu_flush_ms=0.5)


@pytest.mark.parametrize("name", [*(policy.value for policy in POLICIES), AUTO])
@pytest.mark.parametrize("shared", [True, False])
def test_all_memory_is_plain_on_a_cpu(name: str, shared: bool) -> None:
    choice = MemoryAdvisor(CPU).choose(name, LAYOUT, shared)
    assert (choice.policy, choice.reason) == (Policy.HOST, "the backbone runs on the CPU")


def test_unknown_policy_is_refused_on_a_cpu() -> None:
    with pytest.raises(ConfigurationError, match="device, managed, pinned, auto"):
        MemoryAdvisor(CPU).choose("fast", LAYOUT, False)


def test_named_policy_is_chosen_without_a_trial(gpu: Gpu) -> None:
    trial = FakeTrial({})
    advisor = MemoryAdvisor(GPU, trial=trial)
    for policy in POLICIES:
        assert advisor.choose(policy.value, LAYOUT, False).policy is policy
    assert trial.calls == []
    gpu.absent.add("cudaDevAttrManagedMemory")
    memory_choice.cuda.device_attributes.cache_clear()
    with pytest.raises(ConfigurationError, match="managedMemory is 0"):
        advisor.choose("managed", LAYOUT, False)


def test_confirmed_prediction_is_chosen_and_explained(gpu: Gpu, pinned_is_best: None) -> None:
    trial = FakeTrial({D: 2.00e-3, M: 0.98e-3, H: 1e-3})
    choice = MemoryAdvisor(GPU, trial=trial).choose(AUTO, LAYOUT, False)
    assert choice.policy is H
    assert "pinned has the least overhead: device 2 ms, managed 0.5 ms, pinned 0 ms" in choice.reason, "two copies"
    assert "; tried: device 2 ms, managed 0.98 ms, pinned 1 ms; with weights and activations: " in choice.reason
    gpu.absent.add("cudaDevAttrIntegrated")
    memory_choice.cuda.device_attributes.cache_clear()
    choice = MemoryAdvisor(GPU, trial=trial).choose(AUTO, LAYOUT, False)
    assert choice.reason.endswith("; tried: device 2 ms, managed 0.98 ms, pinned 1 ms")


def test_whole_model_is_predicted_with_its_kernels(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch of each kernel flushes at most 2 ms under M. Under H, 2 bytes an image are read past the cache."""
    set_constants(monkeypatch, write_back_ms_per_byte=1.0, gpu_flush_ms=2.0, memory_ms_per_byte=1.0)
    kernels = [KernelTraffic(output_bytes=2), *[KernelTraffic(2, 2, fresh_bytes=2)] * 8]
    monkeypatch.setattr(memory_choice.cuda, "l2_cache_bytes", lambda index: 6)
    choice = MemoryAdvisor(GPU, trial=FakeTrial({D: 1e-3})).choose(AUTO, LAYOUT, False, lambda: kernels)
    assert choice.reason.endswith(f"with weights and activations: device 0 ms, managed {9 * 2} ms, pinned {8 * 6} ms")


def test_fastest_policy_replaces_a_refuted_prediction(gpu: Gpu, pinned_is_best: None) -> None:
    choice = MemoryAdvisor(GPU, trial=FakeTrial({D: 2e-3, M: 1e-3, H: 1.2e-3})).choose(AUTO, LAYOUT, False)
    assert choice.policy is M
    choice = MemoryAdvisor(GPU, trial=FakeTrial({D: 2e-3})).choose(AUTO, LAYOUT, False)  # the others had no room
    assert choice.policy is D
    with pytest.raises(ConfigurationError, match="no room for one slot of"):
        MemoryAdvisor(GPU, trial=FakeTrial({})).choose(AUTO, LAYOUT, False)


def test_legal_policies_are_tried_once_for_each_size(gpu: Gpu, pinned_is_best: None) -> None:
    gpu.absent.add("cudaDevAttrPageableMemoryAccessUsesHostPageTables")
    trial = FakeTrial(dict.fromkeys(POLICIES, 1e-3))
    advisor = MemoryAdvisor(GPU, trial=trial)
    for _ in range(3):
        assert advisor.choose(AUTO, LAYOUT, True).policy is H
    advisor.choose(AUTO, LAYOUT, False)
    advisor.choose(AUTO, Layout(LAYOUT.specs, 99), False)
    assert trial.calls == [(D, H), POLICIES, POLICIES]


def test_other_pipelines_allow_a_slower_policy_with_less_memory(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guidelines 1 and 2: D alone costs a millisecond less than M, but the other's kernels overlap M's mapping."""
    set_constants(
        monkeypatch,
        to_device_ms_per_byte=1.0,
        to_host_ms_per_byte=1.0,
        managed_mapping_ms_per_byte=1.0,
        pinned_mapping_ms_per_byte=2.0,
        cpu_flush_ms=1.0,
        memory_ms_per_byte=1.0,
    )
    first, second = (MemoryAdvisor(GPU, trial=FakeTrial({D: 1e-3, M: 2e-3, H: 3e-3})) for _ in range(2))
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
    assert not second.breaks_guideline
    first.note_unused()
    assert second.breaks_guideline, "no kernel of D is left (Eq. 11)"
    first.note_in_use(LAYOUT, D)
    assert not first.breaks_guideline, "it was not switched"
    del first  # as when its pipeline goes
    gc.collect()
    assert second.choose(AUTO, LAYOUT, False).policy is D
    assert second.breaks_guideline
    without_room = MemoryAdvisor(GPU, trial=FakeTrial({D: 1e-3}))
    second.note_in_use(LAYOUT, D)
    assert without_room.choose(AUTO, LAYOUT, False).policy is D


@pytest.mark.parametrize(("others", "own", "expected"), [(9, 10, D), (10, 10, M), (11, 10, M), (1, 1, M)])
def test_kernels_of_all_pipelines_are_counted(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, others: int, own: int, expected: Policy
) -> None:
    """Eq. 11: a pipeline of 10 kernels is switched if others have as many kernels of policy D."""
    set_constants(
        monkeypatch,
        to_host_ms_per_byte=1.0,
        managed_mapping_ms_per_byte=1.0,
        pinned_mapping_ms_per_byte=9.0,
        cpu_flush_ms=1.0,
    )
    first, second = (MemoryAdvisor(GPU, trial=FakeTrial({D: 1e-3, M: 2e-3, H: 3e-3})) for _ in range(2))
    first.note_in_use(LAYOUT, D, lambda: [KernelTraffic()] * others)
    assert second.choose(AUTO, LAYOUT, False, lambda: [KernelTraffic()] * own).policy is expected
