"""Parts that take images before they are normalised."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from comparisons import rounding
from torch import Tensor

pytest.importorskip("onnx")
pytest.importorskip("openvino")

from onnx import TensorProto, helper
from small_graphs import CHANNELS, ROUNDING, SIDE, graph_of, small_graph

from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.micro_batches import MicroBatchPart
from split_infer_ros.engines.onnxruntime_part import OnnxRuntimePart
from split_infer_ros.engines.openvino_part import OpenVinoPart
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import SplitInferError
from split_infer_ros.images.pixel_input import PixelInput

pytestmark = pytest.mark.numeric

MEAN, STD = (0.47, 0.43, 0.39), (0.24, 0.23, 0.22)
PIXELS = PixelInput(np.dtype(np.uint8), MEAN, STD)


def pixels(count: int, seed: int = 0) -> Tensor:
    """Noise, uint8 (count, SIDE, SIDE, 3)."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, SIDE, SIDE, 3), generator=random, dtype=torch.uint8)


def normalised(images: Tensor) -> Tensor:
    """Converts (N, h, w, 3) of 0..255 to float32 (N, 3, h, w)."""
    return ((images / 255 - torch.tensor(MEAN)) / torch.tensor(STD)).permute(0, 3, 1, 2).contiguous()


def made_for(pixels: PixelInput, part: EnginePart) -> EnginePart:
    found = part.for_pixels(pixels)
    assert found is not None
    return found


def assert_same(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """Normalising rounds twice more, or once, which is within what sums in another order may differ by."""
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert other.std() > 0.01
        assert rounding(one, other) <= ROUNDING


@pytest.mark.parametrize("batch", ["batch", 1])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_are_normalised_within_the_network(batch: str | int, dtype: type[np.generic]) -> None:
    alone = OpenVinoPart(small_graph(batch))
    part = made_for(PixelInput(np.dtype(dtype), MEAN, STD), alone)
    for seed, count in enumerate((1, 3, 2, 4, 5) if batch == "batch" else (1, 1)):  # some sizes share a model
        images = torch.from_numpy(pixels(count, seed).numpy().astype(dtype))
        assert_same(part(images), alone(normalised(images)))


def test_results_are_written_where_the_caller_wants_them() -> None:
    part, images = made_for(PIXELS, OpenVinoPart(small_graph())), pixels(2)
    expected = part(images)
    outputs = torch.full((2, CHANNELS, SIDE, SIDE), torch.nan), torch.full((2, CHANNELS), torch.nan)
    part.run_into(outputs, images)
    for found, other in zip(outputs, expected, strict=True):
        assert torch.equal(found, other)  # the same model on the same images, so that the same operations run


def test_micro_batches_take_pixels_too() -> None:
    alone = OpenVinoPart(small_graph())
    part, images = made_for(PIXELS, MicroBatchPart(alone, 2)), pixels(5)
    assert isinstance(part, MicroBatchPart)
    assert_same(part(images), alone(normalised(images)))


def test_what_was_compiled_serves_later_calls() -> None:
    alone = OpenVinoPart(small_graph())
    assert alone.for_pixels(PIXELS) is alone.for_pixels(PixelInput(np.dtype(np.uint8), MEAN, STD))
    assert alone.for_pixels(PIXELS) is not alone.for_pixels(PixelInput(np.dtype(np.uint8), STD, MEAN))


def test_other_dtypes_are_refused() -> None:
    part = made_for(PIXELS, OpenVinoPart(small_graph()))
    with pytest.raises(SplitInferError, match=r"small takes images uint8 \(\?, 12, 12, 3\), and was given float32\."):
        part(pixels(1).float())


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.INT8, Precision.BF16])
def test_only_networks_in_fp32_take_pixels(precision: Precision) -> None:
    """In bf16, the images would be normalised in bf16. In int8, another graph would be fused than was compared."""
    assert (OpenVinoPart(small_graph(), precision).for_pixels(PIXELS) is not None) is (precision is Precision.FP32)


def test_other_networks_take_no_pixels() -> None:
    two_inputs = graph_of(
        [helper.make_node("Add", ["a", "b"], ["sum"])],
        inputs={"a": ["batch", 3, SIDE, SIDE], "b": ["batch", 3, SIDE, SIDE]},
        outputs={"sum": ["batch", 3, SIDE, SIDE]},
    )
    grey = graph_of(
        [helper.make_node("Relu", ["a"], ["b"])],
        inputs={"a": ["batch", 1, SIDE, SIDE]},
        outputs={"b": ["batch", 1, SIDE, SIDE]},
    )
    bytes_in = graph_of(
        [helper.make_node("Cast", ["a"], ["b"], to=TensorProto.FLOAT)],
        inputs={"a": ["batch", 3, SIDE, SIDE]},
        outputs={"b": ["batch", 3, SIDE, SIDE]},
        types={"a": TensorProto.UINT8},
    )
    assert OpenVinoPart(bytes_in).for_pixels(PIXELS) is None
    assert OpenVinoPart(two_inputs).for_pixels(PIXELS) is None
    assert OpenVinoPart(grey).for_pixels(PIXELS) is None
    pytest.importorskip("onnxruntime")
    assert OnnxRuntimePart(small_graph()).for_pixels(PIXELS) is None  # it would take as long as this package
    assert MicroBatchPart(OnnxRuntimePart(small_graph())).for_pixels(PIXELS) is None
