"""Detections in 16 bits agree with those in fp32 on a real GPU, wherever the model is split."""

from __future__ import annotations

import pytest
from real_gpu import GPU

from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.images.encodings import RGB, Pixels
from split_infer_ros.models.agreement import Agreement
from split_infer_ros.server.improving.two_precisions import TwoPrecisions
from split_infer_ros.sources import draw_scene
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec

SPLIT_POINTS = ("input", "neck", "output")
NUM_SCENES = 32


def shapes(precision: Precision) -> SplitModel:
    config = ExecutionConfig(precision=precision)
    return load_model(ModelSpec("shapes", device=str(GPU), on_torch=True, execution_config=config))


@pytest.mark.parametrize("split_point", SPLIT_POINTS)
@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_detections_in_16_bits_agree_with_those_in_fp32(precision: Precision, split_point: str) -> None:
    computed = TwoPrecisions(shapes(Precision.FP32), shapes(precision), split_point)
    agreement = Agreement(classifies=False)
    for index in range(NUM_SCENES):
        computed.add_to(agreement, Pixels(draw_scene(seed=5, index=index).image, RGB))
    assert len(agreement) > NUM_SCENES // 2, "most scenes show objects"
    assert agreement.value is not None
    assert agreement.value > 0.9
