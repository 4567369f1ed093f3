"""The policies that a GPU allows, by its attributes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.buffers.policy import (
    FALLBACK,
    POLICIES,
    DeviceAttributes,
    DeviceMapping,
    Policy,
    Side,
    find_policy,
    legal_policies,
)
from split_infer_ros.errors import ConfigurationError

DISCRETE = DeviceAttributes(
    integrated=False,
    managed_memory=True,
    concurrent_managed_access=True,
    can_map_host_memory=True,
    host_register_supported=True,
    uses_host_page_tables=False,
)
BEFORE_THOR = replace(DISCRETE, integrated=True, concurrent_managed_access=False)
attributes = st.builds(DeviceAttributes, *6 * [st.booleans()])


def test_legal_policies_of_common_gpus() -> None:
    for gpu in (DISCRETE, BEFORE_THOR):
        assert legal_policies(gpu) == POLICIES
        assert legal_policies(gpu, shared=True) == (Policy.DEVICE, Policy.PINNED)
    assert legal_policies(replace(DISCRETE, uses_host_page_tables=True), shared=True) == POLICIES


@pytest.mark.parametrize(
    ("policy", "without", "shared", "attribute"),
    [
        ("managed", {"managed_memory": False}, False, "managedMemory is 0"),
        ("managed", {}, True, "pageableMemoryAccessUsesHostPageTables"),
        ("pinned", {"can_map_host_memory": False}, False, "canMapHostMemory is 0"),
        ("pinned", {"host_register_supported": False}, True, "hostRegisterSupported is 0"),
        ("device", {"host_register_supported": False}, True, "hostRegisterSupported is 0"),
    ],
)
def test_an_illegal_policy_is_refused_with_the_attribute(
    policy: str, without: dict[str, bool], shared: bool, attribute: str
) -> None:
    gpu = replace(DISCRETE, **without)
    with pytest.raises(ConfigurationError, match=f"'{policy}'.*{attribute}.*it takes one of:.*auto"):
        find_policy(policy, gpu, shared)


@given(gpu=attributes, shared=st.booleans(), policy=st.sampled_from(POLICIES))
def test_a_policy_is_found_exactly_if_nothing_forbids_it(gpu: DeviceAttributes, shared: bool, policy: Policy) -> None:
    if policy in legal_policies(gpu, shared):
        assert policy.reason_forbidden(gpu, shared) == ""
        assert find_policy(policy.value, gpu, shared) is policy
    else:
        with pytest.raises(ConfigurationError, match=policy.value):
            find_policy(policy.value, gpu, shared)


@pytest.mark.parametrize("policy", POLICIES)
def test_without_a_gpu_every_policy_is_plain_memory(policy: Policy) -> None:
    assert find_policy(policy.value, None) is find_policy(policy.value, None, shared=True) is Policy.HOST


@pytest.mark.parametrize("gpu", [None, DISCRETE])
def test_an_unknown_policy_is_refused(gpu: DeviceAttributes | None) -> None:
    with pytest.raises(ConfigurationError, match=r"'fast'; it takes one of: device, managed, pinned, auto\."):
        find_policy("fast", gpu)


@pytest.mark.parametrize(
    ("policy", "mapping", "sides", "footprint"),
    [
        (Policy.HOST, DeviceMapping.NONE, {Side.HOST}, 100),
        (Policy.DEVICE, DeviceMapping.COPIED, {Side.HOST, Side.DEVICE}, 200),
        (Policy.MANAGED, DeviceMapping.MIGRATED, {Side.HOST, Side.DEVICE}, 100),
        (Policy.PINNED, DeviceMapping.DIRECT, {Side.HOST}, 100),
    ],
)
def test_each_policy_tells_its_mapping_and_sides(
    policy: Policy, mapping: DeviceMapping, sides: set[Side], footprint: int
) -> None:
    assert (policy.mapping, policy.sides) == (mapping, sides)
    assert policy.footprint_bytes(100) == footprint
    assert policy.needs_copy == (policy is Policy.DEVICE)
    assert policy.maps_on_access == (policy is Policy.MANAGED)
    assert policy.needs_gpu == (policy is not Policy.HOST)


def test_the_fallback_takes_no_memory_of_the_gpu() -> None:
    assert not FALLBACK.takes_device_memory
    assert FALLBACK in POLICIES
