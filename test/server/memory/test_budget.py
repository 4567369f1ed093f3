"""The memory that a plan takes, and budgets for it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server.memory.budget import PlanBudget, check_weights
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.split_points import SplitPoint

INPUT = 300
HOST = Place()


@pytest.fixture(scope="module")
def split_point() -> SplitPoint:
    return load_model(ModelSpec("shapes", "none", "cpu")).split_point("neck")


def needed(settings: StageSettings, split_point: SplitPoint, place: Place = HOST) -> int:
    return PlanBudget(settings=settings, split_point=split_point, place=place, input_bytes=INPUT).needed_bytes


def check(settings: StageSettings, split_point: SplitPoint, place: Place = HOST, taken_bytes: float = 0.0) -> None:
    PlanBudget(
        settings=settings, split_point=split_point, place=place, input_bytes=INPUT, taken_bytes=taken_bytes
    ).check()


def test_device_memory_takes_both_sides(split_point: SplitPoint) -> None:
    settings = StageSettings(batch_size=2, pool_slots=3)
    pinned = needed(settings, split_point, Place(Policy.PINNED)) - 2 * INPUT
    device = needed(settings, split_point, Place(Policy.DEVICE)) - 2 * INPUT
    assert device == 2 * pinned
    assert pinned >= 3 * 2 * split_point.bytes_per_image


@pytest.mark.parametrize("policy", POLICIES)
def test_image_buffers_count_on_a_gpu(split_point: SplitPoint, policy: Policy) -> None:
    gpu = Place(policy, torch.device("cuda", 0))
    settings = StageSettings(batch_size=2)
    on_gpu = needed(settings, split_point, gpu)
    buffers = on_gpu - needed(settings, split_point, Place(policy))
    assert buffers == 2 * 640 * 480 * 3 * (2 if policy is Policy.DEVICE else 1)
    settings = replace(settings, memory_budget_bytes=on_gpu + 1000)
    budget = PlanBudget(settings=settings, split_point=split_point, place=gpu, input_bytes=INPUT)
    assert budget.image_buffers_bytes == buffers + 1000


def test_each_slot_has_an_input_for_graphs(split_point: SplitPoint) -> None:
    settings = StageSettings(batch_size=2, pool_slots=3)
    budget = PlanBudget(
        settings=settings, split_point=split_point, place=HOST, input_bytes=INPUT, graph_input_bytes=1000
    )
    assert budget.needed_bytes - needed(settings, split_point) == 3 * 2 * 1000


def test_refusal_says_what_would_fit(split_point: SplitPoint) -> None:
    settings = StageSettings(batch_size=8, pool_slots=4)

    def refusal(budget: float) -> str:
        with pytest.raises(ConfigurationError) as caught:
            check(replace(settings, memory_budget_bytes=budget), split_point)
        return str(caught.value)

    full = needed(settings, split_point)
    check(replace(settings, memory_budget_bytes=full), split_point)
    assert refusal(full - 1) == (
        f"Features and staging take {full / 1e6:,.1f} MB at split_point neck, batch_size 8 and pool_slots 4, more "
        f"than the memory_budget_mb of {(full - 1) / 1e6:,.1f}: batch_size 7 would fit."
    )
    smallest = needed(replace(settings, batch_size=1, pool_slots=1), split_point)
    assert refusal(smallest).endswith("batch_size 1 with pool_slots 1 would fit.")
    assert "another split_point, or a budget of" in refusal(smallest - 1)


@given(size=st.integers(1, 16), slots=st.integers(1, 8), budget=st.floats(1e3, 1e9), policy=st.sampled_from(Policy))
def test_proposed_settings_fit(split_point: SplitPoint, size: int, slots: int, budget: float, policy: Policy) -> None:
    settings = StageSettings(batch_size=size, pool_slots=slots, memory_budget_bytes=budget)
    place = Place(policy)
    try:
        check(settings, split_point, place)
    except ConfigurationError as error:
        proposal = str(error).rpartition(": ")[2].removesuffix(" would fit.")
        if proposal.startswith(("batch_size", "pool_slots")):
            words = proposal.replace(" with ", " ").split()
            proposed = {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}
            check(replace(settings, **proposed), split_point, place)  # type: ignore[arg-type]
        else:
            assert needed(replace(settings, batch_size=1, pool_slots=1), split_point, place) > budget
    else:
        assert needed(settings, split_point, place) <= budget


def test_no_budget_is_no_limit(split_point: SplitPoint) -> None:
    huge = TensorSpec("x", (1 << 40,), FLOAT32)
    settings = StageSettings(memory_budget_bytes=math.inf)
    check(settings, replace(split_point, tensors=(huge,)), Place(Policy.DEVICE))


def test_memory_of_other_models_is_not_available(split_point: SplitPoint) -> None:
    full = needed(StageSettings(batch_size=2), split_point)
    settings = StageSettings(batch_size=2, memory_budget_bytes=3 * full)
    check(settings, split_point, taken_bytes=2 * full)
    with pytest.raises(ConfigurationError, match=r"of which other models have .*: batch_size 1 would fit\."):
        check(settings, split_point, taken_bytes=2 * full + 1)
    smallest = needed(StageSettings(batch_size=1, pool_slots=1), split_point)
    with pytest.raises(ConfigurationError, match=f"a budget of {(3 * full + smallest) / 1e6:,.1f} would fit"):
        check(settings, split_point, taken_bytes=3 * full)


def test_weights_that_do_not_fit_are_refused() -> None:
    check_weights("vgg16", parameters=100, item_bytes=4, free_bytes=400)
    with pytest.raises(ConfigurationError, match=r"vgg16 .* take 400\.0 MB, and 200\.0 MB .* 50\.0 million"):
        check_weights("vgg16", parameters=100_000_000, item_bytes=4, free_bytes=200_000_000)
