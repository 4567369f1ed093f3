from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from photographs import photographs
from torch import Tensor
from torchvision.models import EfficientNet_B2_Weights, MobileNet_V2_Weights, WeightsEnum
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import BGR, GREY, RGB, Pixels
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.letterbox import Letterbox
from split_infer_ros.models.preprocess import IMAGENET_MEAN, IMAGENET_STD, MAX_ASPECT, Preprocess

pytestmark = pytest.mark.numeric

CLASSIFIER = find_model("mobilenet_v2").preprocess
SSDLITE = find_model("ssdlite320").preprocess
STRETCH = Preprocess(48, 64)
LETTERBOX = Preprocess(48, 64, letterbox=Letterbox(40, 60))
CENTRED = Preprocess(48, 64, letterbox=Letterbox(48, 64, centred=True, colour=(114.0,) * 3), opencv=True)
CORNER = Preprocess(48, 64, letterbox=Letterbox(48, 64, colour=(114.0,) * 3), opencv=True, bgr=True)

GREY_LEVEL = 1 / 255 / min(IMAGENET_STD)

SIZES = st.tuples(st.integers(1, 400), st.integers(1, 400))


def run(preprocess: Preprocess, *images: Pixels) -> Tensor:
    return torch.from_numpy(preprocess.normalise(preprocess.gather(images, preprocess.staging(len(images)))))


def rgb(image: np.ndarray) -> Pixels:
    return Pixels(image, RGB)


def padded(image: np.ndarray, padding: int = 5) -> Pixels:
    """The same image with padded rows, read-only."""
    height, width, channels = image.shape
    memory = np.full((height, width * channels + padding), 99, np.uint8)
    memory[:, : width * channels] = image.reshape(height, -1)
    memory.flags.writeable = False
    data = memory[:, : width * channels].reshape(image.shape)
    assert np.shares_memory(data, memory)
    return Pixels(data, RGB)


def of_size(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A photograph, resized to any size."""
    image = torch.tensor(photographs()[seed % len(photographs())]).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(image, size=(height, width), mode="bilinear", antialias=True)
    return resized[0].permute(1, 2, 0).contiguous().numpy()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("name", "published", "levels"),
    [
        ("mobilenet_v2", MobileNet_V2_Weights.IMAGENET1K_V1, 1.01),
        # Bicubic. Rounding between the passes over rows and columns costs more at hard edges.
        ("efficientnet_b2", EfficientNet_B2_Weights.IMAGENET1K_V1, 8),
    ],
)
def test_classifier_input_equals_torchvision(
    name: str, published: WeightsEnum, levels: float, transposed: bool
) -> None:
    reference = published.transforms()
    preprocess = find_model(name).preprocess
    for photograph in photographs()[:4]:
        image = photograph.swapaxes(0, 1).copy() if transposed else photograph
        expected = reference(torch.tensor(image).permute(2, 0, 1))
        ours = run(preprocess, padded(image))[0]
        assert ours.shape == expected.shape
        assert (ours - expected).abs().max() <= GREY_LEVEL * levels
        assert (ours - expected).abs().mean() <= GREY_LEVEL / 4


@settings(max_examples=15)
@given(SIZES)
def test_classifier_input_equals_torchvision_at_any_size(size: tuple[int, int]) -> None:
    height, width = size
    if max(size) > MAX_ASPECT * min(size):
        height = width = min(size)
    image = of_size(height, width)
    expected = MobileNet_V2_Weights.IMAGENET1K_V1.transforms()(torch.tensor(image).permute(2, 0, 1))
    assert (run(CLASSIFIER, rgb(image))[0] - expected).abs().max() <= GREY_LEVEL * 1.01


def test_detector_input_equals_torchvision() -> None:
    reference = GeneralizedRCNNTransform(320, 320, [0.5] * 3, [0.5] * 3, size_divisible=1, fixed_size=(320, 320)).eval()
    images = [*photographs()[:3], of_size(1, 1), of_size(1, 700), of_size(33, 1), of_size(320, 320)]
    for image in images:
        expected = reference([torch.tensor(image).permute(2, 0, 1) / 255])[0].tensors[0]
        # A hundredth of a grey level: torch computes where a pixel lies in float32, OpenCV in float64.
        torch.testing.assert_close(run(SSDLITE, padded(image))[0], expected, rtol=0, atol=0.01 / 255 / 0.5)


@pytest.mark.parametrize("size", [(480, 640), (270, 480), (100, 101), (1080, 1920), (3, 900)])
@pytest.mark.parametrize(("name", "sides"), [("fasterrcnn_mobilenet_320", (320, 640)), ("retinanet", (800, 1333))])
def test_letterboxed_input_equals_torchvision(name: str, sides: tuple[int, int], size: tuple[int, int]) -> None:
    """The padding equals torchvision's, except that there can be more of it."""
    preprocess = find_model(name).preprocess
    photograph = of_size(*size)
    transform = GeneralizedRCNNTransform(*sides, IMAGENET_MEAN, IMAGENET_STD)
    batch, _ = transform([torch.tensor(photograph).permute(2, 0, 1) / 255])
    (height, width) = batch.image_sizes[0]
    (ours,) = run(preprocess, rgb(photograph))
    assert height <= ours.shape[1]
    assert width <= ours.shape[2]
    torch.testing.assert_close(ours[:, :height, :width], batch.tensors[0, :, :height, :width], rtol=0, atol=1e-3)
    padding = torch.cat([ours[:, height:].flatten(), ours[:, :, width:].flatten()])
    torch.testing.assert_close(padding, torch.zeros_like(padding), rtol=0, atol=1e-6)
    corners = preprocess.to_source(np.array([[0, 0, width, height]], np.float32), *size)
    np.testing.assert_allclose(corners, [[0, 0, size[1], size[0]]], rtol=1e-6)


def test_each_colour_is_normalised_by_its_mean_and_std() -> None:
    preprocess = Preprocess(1, 1, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 0.125))
    image = np.array([[[51, 102, 255]]], dtype=np.uint8)  # 0.2, 0.4, 1.0
    torch.testing.assert_close(run(preprocess, rgb(image))[0, :, 0, 0], torch.tensor([0.2, 0.8, 5.6]))
    white = np.full((1, 1, 3), 255, dtype=np.uint8)
    expected = [(1 - mean) / std for mean, std in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)]
    torch.testing.assert_close(run(Preprocess(1, 1), rgb(white))[0, :, 0, 0], torch.tensor(expected))


ALL = pytest.mark.parametrize(
    "preprocess",
    [CLASSIFIER, SSDLITE, STRETCH, LETTERBOX, CENTRED, CORNER],
    ids=["crop", "float", "stretch", "letterbox", "centred", "bgr"],
)


@ALL
@pytest.mark.parametrize("mean", [(0.0, 0.0, 0.0), IMAGENET_MEAN], ids=["without mean", "with mean"])
def test_both_layouts_hold_the_same_bits(preprocess: Preprocess, mean: tuple[float, float, float]) -> None:
    """Each value is a product and a sum. The product is below 8, so that rounding it costs at most 2**-22."""
    preprocess = replace(preprocess, mean=mean)
    images = [rgb(image) for image in photographs()[:2]]
    gathered = preprocess.gather(images, preprocess.staging(len(images)))
    nested, planes = (preprocess.normalise(gathered, channels_last=each) for each in (True, False))
    assert nested.transpose(0, 2, 3, 1).flags.c_contiguous
    assert planes.flags.c_contiguous
    assert np.array_equal(nested, planes)
    exact = (gathered / 255.0 - np.array(mean)) / np.array(preprocess.std)
    np.testing.assert_allclose(planes, exact.transpose(0, 3, 1, 2), rtol=2**-21, atol=2**-21)


@ALL
def test_every_encoding_gives_the_same_input(preprocess: Preprocess) -> None:
    image = photographs()[0]
    expected = run(preprocess, rgb(image))
    alpha = np.full_like(image[..., :1], 7)
    bgr = np.ascontiguousarray(image[..., ::-1])
    for data, order in (
        (bgr, (2, 1, 0)),
        (np.concatenate([image, alpha], axis=2), (0, 1, 2)),
        (np.concatenate([bgr, alpha], axis=2), (2, 1, 0)),
    ):
        shown = run(preprocess, Pixels(data, order))
        # torch resizes three and four channels by different routines, which can round to neighbouring grey values.
        assert (shown - expected).abs().max() <= GREY_LEVEL * 1.01


@ALL
def test_blue_green_and_red_are_swapped_without_rounding(preprocess: Preprocess) -> None:
    """The rows of the image are padded in memory."""
    side = preprocess.shorter_side or min(preprocess.height, preprocess.width)
    padded = of_size(side, side + 5)
    found = run(preprocess, Pixels(padded[..., ::-1].copy()[:, :side], BGR))
    assert torch.equal(found, run(preprocess, Pixels(padded[:, :side], RGB)))


def test_a_grey_image_is_grey_in_all_three_colours() -> None:
    grey = np.ascontiguousarray(photographs()[0][..., 1:2])
    shown = run(CLASSIFIER, Pixels(grey, GREY))
    expected = run(CLASSIFIER, rgb(np.repeat(grey, 3, axis=2)))
    assert (shown - expected).abs().max() <= GREY_LEVEL * 1.01


def test_a_batch_equals_its_images_and_is_channels_last() -> None:
    images = [rgb(photograph) for photograph in photographs()[:3]]
    together = run(CLASSIFIER, *images)
    assert together.shape == (3, 3, 224, 224)
    assert together.dtype == torch.float32
    assert together.is_contiguous(memory_format=torch.channels_last)
    for index, image in enumerate(images):
        # Each image is resized separately, and each pixel is scaled separately.
        assert torch.equal(together[index], run(CLASSIFIER, image)[0])


def test_a_small_batch_does_not_change_the_rest_of_the_buffer() -> None:
    staging = STRETCH.staging(4)
    staging.fill(5)
    filled = STRETCH.gather([rgb(of_size(48, 64))], staging)
    assert np.shares_memory(filled, staging)
    assert len(filled) == 1
    assert (staging[1:] == 5).all()


@pytest.mark.parametrize("preprocess", [CLASSIFIER, SSDLITE, STRETCH], ids=["crop", "float", "stretch"])
@pytest.mark.parametrize("size", [(1, 1), (1, 2), (3, 1), (1, 9), (1, 2000), (2000, 3), (7, 5000), (224, 224)])
def test_images_of_odd_shapes_are_resized(preprocess: Preprocess, size: tuple[int, int]) -> None:
    shown = run(preprocess, rgb(np.full((*size, 3), 200, dtype=np.uint8)))
    assert shown.shape == (1, 3, preprocess.height, preprocess.width)
    for channel, (mean, std) in enumerate(zip(preprocess.mean, preprocess.std, strict=True)):
        expected = torch.full((preprocess.height, preprocess.width), (200 / 255 - mean) / std)
        torch.testing.assert_close(shown[0, channel], expected)


@pytest.mark.parametrize("size", [(20, 400), (401, 20), (20, 161), (3, 1000)])
def test_the_middle_of_a_long_image_equals_torchvision(size: tuple[int, int]) -> None:
    image = of_size(*size, seed=1)
    expected = MobileNet_V2_Weights.IMAGENET1K_V1.transforms()(torch.tensor(image).permute(2, 0, 1))
    # torchvision rounds the resized length to whole pixels, which shifts the input by at most half a pixel.
    assert (run(CLASSIFIER, rgb(image))[0] - expected).abs().mean() < 2 * GREY_LEVEL


def test_a_long_image_takes_no_memory_for_skipped_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resized as a whole, a row of 200,000 pixels would have 256 x 51,200,000 pixels."""
    resized_sizes: list[int] = []
    interpolate = torch.nn.functional.interpolate

    def spy(planes: Tensor, **options: object) -> Tensor:
        resized: Tensor = interpolate(planes, **options)  # type: ignore[arg-type]
        resized_sizes.append(resized.numel())
        return resized

    monkeypatch.setattr(torch.nn.functional, "interpolate", spy)
    run(CLASSIFIER, rgb(np.zeros((1, 200_000, 3), dtype=np.uint8)))
    assert len(resized_sizes) == 1
    assert resized_sizes[0] <= 3 * 256 * 256 * (MAX_ASPECT + 1)


def test_a_crop_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"200.*at least 224"):
        Preprocess(100, 224, shorter_side=200)


@settings(max_examples=30)
@given(
    size=SIZES, preprocess=st.sampled_from([CLASSIFIER, SSDLITE, STRETCH, LETTERBOX, CENTRED, CORNER]), data=st.data()
)
def test_boxes_are_converted_back_to_the_object(
    size: tuple[int, int], preprocess: Preprocess, data: st.DataObject
) -> None:
    """A white patch in the middle of a black image is found again, to within a pixel of the source or the input."""
    height, width = size
    # The patch lies in the middle square, nearly all of which a crop of 224 of 256 shows.
    inner = max(1, int(min(size) * 0.8))
    tall, wide = data.draw(st.integers(max(1, inner // 2), inner)), data.draw(st.integers(max(1, inner // 2), inner))
    top, left = (height - tall) // 2, (width - wide) // 2
    image = np.zeros((height, width, 3), dtype=np.uint8)
    image[top : top + tall, left : left + wide] = 255
    shown = torch.from_numpy(preprocess.gather([rgb(image)], preprocess.staging(1)))[0, ..., 0].float()
    rows = torch.nonzero((shown > 127).any(dim=1)).flatten()
    columns = torch.nonzero((shown > 127).any(dim=0)).flatten()
    assume(len(rows) > 0)  # the patch did not shrink to nothing
    box = np.array([[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]], np.float32)
    back = preprocess.to_source(box, height, width)[0]
    shrink = [width / preprocess.width, height / preprocess.height]
    if preprocess.letterbox:
        shrink = [max(height / preprocess.letterbox.height, width / preprocess.letterbox.width)] * 2
    if preprocess.shorter_side:
        shrink = [min(size) / preprocess.shorter_side] * 2
        # A patch that extends beyond the crop is visible up to the crop's edge.
        edge = [(side - min(size) * 224 / 256) / 2 for side in (width, height)]
        right, bottom = min(left + wide, width - edge[0]), min(top + tall, height - edge[1])
        expected = np.array([max(left, edge[0]), max(top, edge[1]), right, bottom])
    else:
        expected = np.array([left, top, left + wide, top + tall])
    allowed = np.array([max(1.0, ratio) * 1.5 for ratio in shrink] * 2)
    assert (np.abs(back - expected) <= allowed).all(), (back, expected)


def test_boxes_of_a_long_image_lie_in_its_middle() -> None:
    whole_input = np.array([[0, 0, 224, 224]], np.float32)
    side = 224 / 256 * 10
    for height, width in ((10, 1000), (1000, 10), (10, 1001)):
        box = CLASSIFIER.to_source(whole_input, height, width)[0]
        expected = [(width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2]
        np.testing.assert_allclose(box, expected, rtol=0, atol=0.05)


@given(SIZES)
def test_boxes_never_leave_the_image(size: tuple[int, int]) -> None:
    height, width = size
    outside = np.array([[-1e6, -1e6, 1e6, 1e6], [1e6, 1e6, 1e6, 1e6]], np.float32)
    for preprocess in (CLASSIFIER, SSDLITE, LETTERBOX, CENTRED, CORNER):
        boxes = preprocess.to_source(outside, height, width)
        assert boxes[0].tolist() == [0, 0, width, height]
        assert boxes[1].tolist() == [width, height, width, height]


def test_an_empty_list_of_boxes_is_converted() -> None:
    assert CLASSIFIER.to_source(np.zeros((0, 4), np.float32), 10, 20).shape == (0, 4)
