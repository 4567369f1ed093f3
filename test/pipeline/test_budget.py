"""What a plan takes of memory, and budgets."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.pipeline.budget import bytes_needed, check_budget, check_weights, left_for_images
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.split_points import SplitPoint

INPUT = 300


@pytest.fixture(scope="module")
def split_point() -> SplitPoint:
    return load_model(ModelSpec("shapes", "none", "cpu")).split_point("neck")


def test_device_memory_takes_both_sides(split_point: SplitPoint) -> None:
    settings = StageSettings(batch_size=2, pool_slots=3)
    both = Policy.PINNED, Policy.DEVICE
    one, two = (bytes_needed(settings, split_point, Place(policy), INPUT) - 2 * INPUT for policy in both)
    assert two == 2 * one
    assert one >= 3 * 2 * split_point.bytes_per_image


@pytest.mark.parametrize("policy", POLICIES)
def test_buffers_for_images_count_on_a_gpu(split_point: SplitPoint, policy: Policy) -> None:
    gpu = Place(policy, torch.device("cuda", 0))
    needed = bytes_needed(StageSettings(batch_size=2), split_point, gpu, INPUT)
    raw = needed - bytes_needed(StageSettings(batch_size=2), split_point, Place(policy), INPUT)
    assert raw == 2 * 640 * 480 * 3 * (2 if policy is Policy.DEVICE else 1)
    settings = StageSettings(batch_size=2, memory_budget_bytes=needed + 1000)
    assert left_for_images(settings, split_point, gpu, INPUT) == raw + 1000


def test_what_would_fit_is_said(split_point: SplitPoint) -> None:
    settings = StageSettings(batch_size=8, pool_slots=4)

    def refusal(budget: float) -> str:
        with pytest.raises(ConfigurationError) as caught:
            check_budget(replace(settings, memory_budget_bytes=budget), split_point, Place(), INPUT)
        return str(caught.value)

    needed = bytes_needed(settings, split_point, Place(), INPUT)
    check_budget(replace(settings, memory_budget_bytes=needed), split_point, Place(), INPUT)
    assert refusal(needed - 1) == (
        f"Features and staging take {needed / 1e6:,.1f} MB at split_point neck, batch_size 8 and pool_slots 4, more "
        f"than the memory_budget_mb of {(needed - 1) / 1e6:,.1f}: batch_size 7 would fit."
    )
    least = bytes_needed(replace(settings, batch_size=1, pool_slots=1), split_point, Place(), INPUT)
    assert refusal(least).endswith("batch_size 1 with pool_slots 1 would fit.")
    assert "another split_point, or a budget of" in refusal(least - 1)


@given(size=st.integers(1, 16), slots=st.integers(1, 8), budget=st.floats(1e3, 1e9), policy=st.sampled_from(Policy))
def test_what_is_said_to_fit_does(
    split_point: SplitPoint, size: int, slots: int, budget: float, policy: Policy
) -> None:
    settings = StageSettings(batch_size=size, pool_slots=slots, memory_budget_bytes=budget)
    try:
        check_budget(settings, split_point, Place(policy), INPUT)
    except ConfigurationError as error:
        said = str(error).rpartition(": ")[2].removesuffix(" would fit.")
        if said.startswith(("batch_size", "pool_slots")):
            words = said.replace(" with ", " ").split()
            proposed = {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}
            check_budget(replace(settings, **proposed), split_point, Place(policy), INPUT)
        else:
            assert (
                bytes_needed(replace(settings, batch_size=1, pool_slots=1), split_point, Place(policy), INPUT) > budget
            )
    else:
        assert bytes_needed(settings, split_point, Place(policy), INPUT) <= budget


def test_no_budget_is_no_limit(split_point: SplitPoint) -> None:
    huge = TensorSpec("x", (1 << 40,), torch.float32)
    settings = StageSettings(memory_budget_bytes=math.inf)
    check_budget(settings, replace(split_point, tensors=(huge,)), Place(Policy.DEVICE), INPUT)


def test_what_other_models_have_is_not_to_be_had(split_point: SplitPoint) -> None:
    needed = bytes_needed(StageSettings(batch_size=2), split_point, Place(), INPUT)
    settings = StageSettings(batch_size=2, memory_budget_bytes=3 * needed)
    check_budget(settings, split_point, Place(), INPUT, 2 * needed)
    with pytest.raises(ConfigurationError, match=r"of which other models have .*: batch_size 1 would fit\."):
        check_budget(settings, split_point, Place(), INPUT, 2 * needed + 1)
    least = bytes_needed(StageSettings(batch_size=1, pool_slots=1), split_point, Place(), INPUT)
    with pytest.raises(ConfigurationError, match=f"a budget of {(3 * needed + least) / 1e6:,.1f} would fit"):
        check_budget(settings, split_point, Place(), INPUT, 3 * needed)


def test_weights_that_do_not_fit_are_refused_with_what_would() -> None:
    check_weights("vgg16", 100, 4, 400)
    with pytest.raises(ConfigurationError, match=r"vgg16 .* take 400\.0 MB, and 200\.0 MB .* 50\.0 million"):
        check_weights("vgg16", 100_000_000, 4, 200_000_000)
