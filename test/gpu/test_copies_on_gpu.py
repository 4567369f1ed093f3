"""A split run without a copy: what the GPU's own profile shows (paper 000, §7.3)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from gpu_frames import SETTINGS, picture
from real_gpu import GPU, need, need_profiler

from benchmarks.unified_splitting.copy_calls import _calls, count_copy_calls
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec

PICTURES = [picture(number) for number in range(4)]


@cache
def model_of(name: str) -> SplitModel:
    return load_model(ModelSpec(name, "random", str(GPU)))


@pytest.fixture(autouse=True)
def profiler_sees_copies() -> None:
    need_profiler()
    ones = torch.ones(8, device=GPU)
    assert _calls(lambda: ones.clone(), GPU), "the profiler lists no copy, and one ran"


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("policy", [Policy.PINNED, Policy.MANAGED])
@pytest.mark.parametrize(
    ("name", "split_point"),
    [
        ("resnet18", "layer4.0"),  # ends in an activation
        ("resnet18", "flatten"),  # the paper's: pooled and flattened
        ("mobilenet_v2", "features.17"),  # ends in a convolution
        ("vit_tiny", "encoder.layers.encoder_layer_5"),  # ends in a sum
    ],
)
def test_hand_over_adds_no_copy(name: str, split_point: str, policy: Policy, graphs: bool) -> None:
    need(policy)
    settings = replace(SETTINGS, split_point=split_point, memory_policy=policy.value, cuda_graphs=graphs)
    assert count_copy_calls(model_of(name), settings, PICTURES).added <= 0  # a recorded backbone may make fewer


def test_policy_with_two_buffers_copies_each_tensor_once() -> None:
    assert count_copy_calls(model_of("resnet18"), replace(SETTINGS, split_point="flatten"), PICTURES).added == 1
