"""Both pre-processors give a model the same batch. The GPU's pre-processor runs on the CPU here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from split_infer_ros.buffers.host_arrays import FLOAT16, FLOAT32, DType, as_array, bfloat16, dtype_of
from split_infer_ros.buffers.layout import strides_of
from split_infer_ros.buffers.memory import Place
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import RGB, Pixels
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.preprocessing.device_preprocessor import DevicePreprocessor
from split_infer_ros.preprocessing.host_preprocessor import HostPreprocessor
from split_infer_ros.preprocessing.image_buffer import MIN_BUFFER_BYTES
from split_infer_ros.preprocessing.loaded_batch import BatchForm
from split_infer_ros.preprocessing.preprocessor import Preprocessor, make_preprocessor

CLASSIFIER, DETECTOR = Preprocess(24, 32, shorter_side=40), Preprocess(24, 32, antialias=False)


def on_host(preprocess: Preprocess, batch_size: int) -> Preprocessor:
    return HostPreprocessor(preprocess, BatchForm(FLOAT32), batch_size=batch_size)


def on_device(preprocess: Preprocess, batch_size: int, budget_bytes: float = math.inf) -> Preprocessor:
    return DevicePreprocessor(
        preprocess, BatchForm(FLOAT32), batch_size=batch_size, place=Place(), budget_bytes=budget_bytes
    )


def pictures() -> list[Pixels]:
    """Two images alike, then images that differ: channel order, grey, padded rows, four channels."""
    random = np.random.default_rng(0)

    def make(height: int, width: int, channels: int, rgb: tuple[int, int, int]) -> Pixels:
        return Pixels(random.integers(0, 256, (height, width, channels), np.uint8), rgb)

    padded = Pixels(make(50, 70, 3, (0, 1, 2)).data[:, :60], (0, 1, 2))
    return [
        make(48, 64, 3, (0, 1, 2)),
        make(48, 64, 3, (0, 1, 2)),
        make(48, 64, 3, (2, 1, 0)),
        make(100, 30, 1, (0, 0, 0)),
        padded,
        make(24, 32, 4, (2, 1, 0)),
    ]


@pytest.mark.parametrize("preprocess", [CLASSIFIER, DETECTOR])
def test_each_image_comes_out_as_if_it_were_alone(preprocess: Preprocess) -> None:
    images = pictures()
    for preprocessor in (on_host(preprocess, len(images)), on_device(preprocess, len(images))):
        for _ in range(3):  # buffers take turns
            loaded = preprocessor.load(images)
            loaded.ready.wait()
            assert loaded.images.shape == (len(images), 3, 24, 32)
            for image, found in zip(images, loaded.images.clone(), strict=True):
                # each image is resized by itself, each pixel scaled by itself
                assert torch.equal(found, preprocessor.load([image]).images[0])


@pytest.mark.parametrize(("preprocess", "levels"), [(CLASSIFIER, 1.01), (DETECTOR, 0.02)])
def test_host_and_device_see_the_same_to_a_grey_level(preprocess: Preprocess, levels: float) -> None:
    """The host rounds with integer weights. Without rounding, coordinates differ by float32's last bits."""
    host, device = (make(preprocess, len(pictures())).load(pictures()).images for make in (on_host, on_device))
    difference = (host - device).abs() * torch.tensor(preprocess.std).view(3, 1, 1)
    assert difference.max() * 255 <= levels


def test_smaller_batch_follows_a_larger_one() -> None:
    images = pictures()
    for preprocessor in (on_host(DETECTOR, 6), on_device(DETECTOR, 6)):
        preprocessor.load(images)
        assert torch.equal(preprocessor.load(images[3:5]).images, preprocessor.load(images[3:5]).images)
        assert len(preprocessor.load(images[:1]).images) == 1


@pytest.mark.parametrize("dtype", [FLOAT16, bfloat16()])
def test_batch_has_the_backbones_precision(dtype: DType) -> None:
    preprocessor = make_preprocessor(DETECTOR, BatchForm(dtype), batch_size=2, place=Place())
    loaded = preprocessor.load(pictures()[:2])
    assert dtype_of(loaded.images) == dtype
    assert loaded.images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, bfloat16()])
@pytest.mark.parametrize("channels_last", [True, False])
def test_a_backbone_gets_arrays_or_tensors_of_the_same_bits(dtype: DType, channels_last: bool) -> None:
    tensors, arrays = (
        make_preprocessor(DETECTOR, BatchForm(dtype, channels_last, is_array), batch_size=2, place=Place())
        .load(pictures()[:2])
        .images
        for is_array in (False, True)
    )
    assert isinstance(tensors, torch.Tensor)
    assert isinstance(arrays, np.ndarray)
    assert arrays.dtype == dtype
    assert strides_of(arrays) == strides_of(tensors)
    assert as_array(tensors).tobytes() == arrays.tobytes()


def test_each_batch_of_arrays_has_memory_of_its_own() -> None:
    preprocessor = make_preprocessor(DETECTOR, BatchForm(FLOAT32, is_array=True), batch_size=2, place=Place())
    first = preprocessor.load(pictures()[:2]).images
    kept = first.copy()
    assert not np.shares_memory(first, preprocessor.load(pictures()[3:5]).images)
    assert np.array_equal(first, kept)


def test_images_beyond_the_budget_are_refused() -> None:
    preprocessor = on_device(DETECTOR, 1, budget_bytes=2 * MIN_BUFFER_BYTES + 2 * 100)

    def image(width: int) -> Pixels:
        return Pixels(np.zeros((1, width, 3), np.uint8), RGB)

    fits, too_large = image(MIN_BUFFER_BYTES // 3 + 33), image(MIN_BUFFER_BYTES // 3 + 34)
    preprocessor.load([fits])
    with pytest.raises(ConfigurationError, match=r"images of this size take 1\.8 MB.*memory_budget_mb has 1\.8"):
        preprocessor.load([too_large])
    preprocessor.load([fits])


@pytest.mark.parametrize("make", [HostPreprocessor, DevicePreprocessor])
@pytest.mark.parametrize("preprocess", [CLASSIFIER, DETECTOR])
def test_both_layouts_have_the_same_bits(preprocess: Preprocess, make: Any) -> None:
    """Each pixel is scaled by itself, by the same operation."""
    place = {"place": Place()} if make is DevicePreprocessor else {}
    found = []
    for channels_last in (True, False):
        preprocessor = make(preprocess, BatchForm(FLOAT32, channels_last), batch_size=6, **place)
        images = preprocessor.load(pictures()).images
        assert images.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        found.append(images)
    assert torch.equal(*found)
