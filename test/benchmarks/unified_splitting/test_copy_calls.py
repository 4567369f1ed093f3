"""The benchmark's count of copy calls, and what it finds on a CPU.

The counts are of torch's own calls and so the same on any processor.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from benchmarks.unified_splitting.copy_calls import CPU, SharedSlots, _calls, count_copy_calls
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.server import plan_making
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec

PICTURES = [Pixels.blank()] * 2
SETTINGS = StageSettings(batch_size=2)


@cache
def load(name: str) -> SplitModel:
    return load_model(ModelSpec(name, "random", "cpu"))


def test_every_way_to_move_data_counts_once() -> None:
    tensor = torch.rand(2, 3, 4, 4)

    def move() -> None:
        tensor.clone()
        tensor.contiguous(memory_format=torch.channels_last)
        tensor.to(torch.float64)
        torch.empty_like(tensor).copy_(tensor)

    assert _calls(move, CPU) == 4


def test_what_moves_nothing_does_not_count() -> None:
    tensor = torch.rand(2, 3, 4, 4)

    def look() -> None:
        tensor.contiguous()
        tensor.to(torch.float32)
        tensor.view(2, 48).flatten(1)
        tensor + tensor

    assert _calls(look, CPU) == 0


@pytest.mark.parametrize(
    ("name", "split_point"),
    [
        ("shapes", "default"),
        ("resnet18", "layer3.0"),  # ends in an activation
        ("resnet18", "flatten"),  # the paper's: pooled and flattened
        ("mobilenet_v2", "features.17"),  # ends in a convolution, whose result the slot holds
        ("vit_tiny", "encoder.layers.encoder_layer_5"),  # ends in a sum; its attention copies by itself
        ("resnet18", "input"),
        ("resnet18", "output"),
    ],
)
def test_hand_over_within_a_process_adds_no_copy(name: str, split_point: str) -> None:
    model = load(name)
    settings = replace(SETTINGS, split_point=model.split_point(split_point).name)
    assert count_copy_calls(model, settings, PICTURES).added == 0


@pytest.mark.parametrize(
    ("name", "split_point", "added"),
    [
        ("resnet18", "layer3.0", 0),
        ("resnet18", "flatten", 0),
        ("vit_tiny", "encoder.layers.encoder_layer_5", 0),
        ("mobilenet_v2", "features.17", 1),  # oneDNN's convolutions write into memory of their own
    ],
)
def test_hand_over_to_another_process_copies_what_no_operator_writes(name: str, split_point: str, added: int) -> None:
    model = load(name)
    settings = replace(SETTINGS, split_point=split_point)
    assert count_copy_calls(model, settings, PICTURES, SharedSlots()).added == added


def test_part_of_a_tensor_is_copied() -> None:
    model = load("vit_tiny")
    assert count_copy_calls(model, replace(SETTINGS, split_point="getitem"), PICTURES).added == 1  # the class token


def test_copies_of_a_hand_over_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_making, "backbone_for", lambda slots, backbone: backbone)
    model = load("resnet18")
    settings = replace(SETTINGS, split_point="flatten")
    assert count_copy_calls(model, settings, PICTURES, SharedSlots()).added == 1
