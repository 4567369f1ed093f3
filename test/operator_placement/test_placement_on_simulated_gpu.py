"""Backbones of which some operators fall back, on the simulated GPU: each operator has its inputs on its own side."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fallback_net import images, sorting_model
from simulated_gpu import GPU, Gpu

from split_infer_ros.operator_placement.placed_backbone import make_backbone
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.vision_ops.implementations import ImplementationChoice

pytestmark = pytest.mark.usefixtures("plain_operators")


def test_operators_fall_back_to_the_cpu_and_features_return(gpu: Gpu) -> None:
    model = sorting_model()
    falling_back = replace(model.execution_config, operators=ImplementationChoice.FALLBACK)
    backbone = make_backbone(model.placed(GPU, falling_back), "second")
    stream = Stream(GPU)
    with torch.inference_mode():
        given = images(2)
        (expected,) = model.backbone("second")(given)
        for _ in range(2):
            with stream.work("backbone"):
                (found,) = backbone(given.to(GPU))
                assert found.device == GPU
                values = found.cpu()
            # convolutions of torch and of oneDNN add up in another order
            torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)
