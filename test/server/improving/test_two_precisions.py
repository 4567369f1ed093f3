"""An image is computed in fp32 and in another precision, and only if it shows an object."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
from two_stages import ENTRY, Brightness, brightness

from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.images.encodings import RGB, Pixels
from split_infer_ros.models.agreement import Agreement
from split_infer_ros.runtime.device import CPU
from split_infer_ros.server.improving.two_precisions import TwoPrecisions
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork

BF16 = ExecutionConfig(precision=Precision.BF16)


class Counted(SplitModel):
    """Counts how often its backbone was asked for."""

    asked = 0

    def placed(self, device: object, execution_config: object = None) -> SplitModel:
        return self

    def backbone(self, name: str) -> object:  # type: ignore[override]
        self.asked += 1
        return super().backbone(name)


def image(light: int) -> Pixels:
    return Pixels(np.full((30, 40, 3), light, np.uint8), RGB)


@pytest.mark.parametrize("split_point", ["input", "parts.0", "output"])
def test_features_of_another_dtype_go_through_the_head_in_fp32(split_point: str) -> None:
    agreement = Agreement(classifies=True)
    other = brightness().placed(CPU, BF16)
    assert other.dtype != brightness().dtype
    score = TwoPrecisions(brightness(), other, split_point).add_to(agreement, image(200))
    assert score == pytest.approx(200 / 255, rel=2**-7)  # bf16 has 8 bits
    assert (len(agreement), agreement.value) == (1, 1.0)


def test_an_image_without_objects_is_not_computed_twice() -> None:
    other = Counted(TorchNetwork(ENTRY, Brightness()))
    computed = TwoPrecisions(brightness(), other, "output")
    agreement = Agreement(classifies=False, score_threshold=0.5)
    assert computed.add_to(agreement, image(20)) is None
    assert (len(agreement), other.asked) == (0, 0)
    assert computed.add_to(agreement, image(200)) == pytest.approx(200 / 255, rel=1e-6)
    assert (len(agreement), other.asked) == (1, 1)
