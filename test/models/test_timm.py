"""Models of timm, if it is installed, and the error without it. No test needs a network."""

from __future__ import annotations

import sys

import pytest
import torch
from comparisons import rounding
from photographs import photograph_batch

from split_infer_ros.errors import ConfigurationError, UnknownModelError
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork

pytestmark = pytest.mark.numeric


def test_without_timm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigurationError, match=r"'timm:resnet10t' needs timm.*pip install timm"):
        find_model("timm:resnet10t")


def test_an_entry_states_what_timm_says_of_the_weights() -> None:
    timm = pytest.importorskip("timm")
    entry = find_model("timm:efficientnet_b0")
    config = timm.get_pretrained_cfg("efficientnet_b0")
    preprocess = entry.preprocess
    assert entry.image_shape == config.input_size
    assert preprocess.shorter_side == int(config.input_size[1] / config.crop_pct)
    assert (preprocess.interpolation, preprocess.mean, preprocess.std) == (
        config.interpolation,
        config.mean,
        config.std,
    )
    assert len(entry.labels) == config.num_classes
    assert entry.labels[0] == "tench"
    assert find_model("timm:vit_base_patch16_224.augreg2_in21k_ft_in1k").preprocess.mean == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "resnest14d"])
def test_every_split_point_gives_the_whole_models_output(name: str) -> None:
    pytest.importorskip("timm")
    entry = find_model(f"timm:{name}")
    images = photograph_batch(*entry.image_shape[1:])[:2].contiguous(memory_format=torch.channels_last)
    module = randomise(entry.build(), images)
    with torch.inference_mode():
        expected = module(images)
        assert expected.std(dim=0).mean() > 0.05
        model = SplitModel(TorchNetwork(entry, module))
        assert len(model.split_points) > 5
        for split_point in model.split_points[:: len(model.split_points) // 4]:
            (found,) = model.head(split_point.name)(*model.backbone(split_point.name)(images))
            assert rounding(found, expected) <= 1e-4  # layers are folded and fused


def test_an_unknown_name_lists_close_ones() -> None:
    pytest.importorskip("timm")
    with pytest.raises(UnknownModelError, match=r"timm \d.* has no model 'resnet51'.*resnet50"):
        find_model("timm:resnet51")
