"""Parts that OpenVINO computes in bfloat16, on processors that have it.

Results may differ from float32 by what rounding explains, element by element: see ``rounding_in_bf16``. They must
differ by much more than two runs in float32 do, so a part that is computed in float32 by mistake fails as well.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from split_infer_ros.engines import openvino_part
from split_infer_ros.engines.openvino_part import OpenVinoPart
from split_infer_ros.engines.precision import Precision
from split_infer_ros.engines.precision_checks import OPENVINO_BF16, can_use_any, is_made_for
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.telemetry.machine import onednn_limit

pytest.importorskip("onnx")
from comparisons import rounding
from small_graphs import ROUNDING, images, in_torch, small_graph, weights

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
UNIT = 2.0**-8  # by which rounding to 8 bits changes a value at most, as a share of the value
SECOND_ORDER = 1.1  # products of two roundings, and sums in float32

needs_bf16 = pytest.mark.skipif(
    not can_use_any(OPENVINO_BF16), reason="neither AVX512_BF16 nor AMX_BF16 is there, or oneDNN is limited"
)


def rounding_in_bf16(x: Tensor) -> tuple[Tensor, Tensor]:
    """The most by which both results of ``in_torch`` change if each value that an operation reads or writes is rounded.

    A product of two rounded factors changes by two units of itself, a sum by that of all its terms' sizes, and its own
    rounding is a third unit. What a layer adds goes through the next one as values do, but without cancelling.
    """
    own = {name: tensor.abs() for name, tensor in weights().items()}
    first = conv2d(x.abs(), own["w1"], own["b1"], padding=1)  # sizes of values, without cancelling
    first_error = 3 * UNIT * first
    second = conv2d(first, own["w2"], own["b2"], padding=1)
    second_error = conv2d(first_error, own["w2"], padding=1) + 3 * UNIT * second
    features_error = first_error + second_error + UNIT * (first + second)
    means_error = (second_error + 2 * UNIT * second).mean(dim=(2, 3))
    return SECOND_ORDER * features_error, SECOND_ORDER * means_error


@needs_bf16
@pytest.mark.parametrize("count", [1, 3])
def test_results_differ_by_the_rounding_of_bf16_and_stay_float32(count: int) -> None:
    pytest.importorskip("openvino")
    x = images(count)
    found, expected = OpenVinoPart(small_graph(), Precision.BF16)(x), in_torch(x)
    for one, other, allowed in zip(found, expected, rounding_in_bf16(x), strict=True):
        assert one.dtype == torch.float32
        assert ((one - other).abs() <= allowed).all()
    assert rounding(found[0], expected[0]) > 10 * ROUNDING


def test_a_precision_that_openvino_does_not_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    if is_made_for(Precision.FP16, CPU) or onednn_limit():
        pytest.skip("the processor has fp16, or oneDNN is limited")
    monkeypatch.setitem(openvino_part.HINTS, Precision.BF16, "f16")
    sentence = r"^OpenVINO cannot run small in f16: on its device CPU it runs in (bf16|f32)\.$"
    with pytest.raises(ConfigurationError, match=sentence):
        OpenVinoPart(small_graph(), Precision.BF16)(images(1))
