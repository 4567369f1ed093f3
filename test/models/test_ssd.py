"""SSDlite320 finds the same as torchvision's detector, on photographs and with weights that find many objects."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from comparisons import assert_same_detections
from photographs import LEAST_VARIATION, photograph_batch, photographs
from torch import Tensor
from torchvision.models.detection.ssd import SSD

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.models.ssd import SsdNet, ssdlite320

pytestmark = pytest.mark.numeric

NUM_IMAGES, SIZE = 3, 320
ENTRY = find_model("ssdlite320")


@cache
def reference() -> SSD:
    whole = ssdlite320()
    images = photograph_batch(SIZE, SIZE)
    net = SsdNet(ssdlite320)
    net.load_state_dict(whole.state_dict())
    randomise(net, images)
    with torch.no_grad():
        for last in net.head.classification_head.module_list:  # type: ignore[union-attr]
            last[-1].weight *= 4  # scores as high as those of a trained one  # type: ignore[index]
    whole.load_state_dict(net.state_dict())
    return whole.eval()


@cache
def outputs() -> tuple[Tensor, Tensor]:
    """The outputs of our network for the first photographs."""
    net = SsdNet(ssdlite320).eval()
    net.load_state_dict(reference().state_dict())
    pixels = [Pixels(photograph, (0, 1, 2)) for photograph in photographs()[:NUM_IMAGES]]
    with torch.inference_mode():
        gathered = ENTRY.preprocess.gather(pixels, ENTRY.preprocess.staging(NUM_IMAGES))
        logits, offsets = net(torch.from_numpy(ENTRY.preprocess.normalise(gathered)))
    assert logits.shape == (NUM_IMAGES, 3234, 91)
    assert offsets.shape == (NUM_IMAGES, 3234, 4)
    assert logits.std(dim=0).mean() > LEAST_VARIATION
    return logits, offsets


@pytest.mark.parametrize(
    "limits", [Limits(0.3, 0.5, 300), Limits(0.1, 0.55, 40), Limits(0.001, 0.2, 100), Limits(1.0, 0.5, 100)]
)
def test_photographs_give_torchvisions_detections(limits: Limits) -> None:
    whole = reference()
    whole.score_thresh, whole.nms_thresh = limits.score_threshold, limits.nms_threshold
    whole.detections_per_img = limits.max_detections
    images = [torch.tensor(photograph).permute(2, 0, 1) / 255 for photograph in photographs()[:NUM_IMAGES]]
    with torch.inference_mode():
        expected = whole(images)
    found = ENTRY.decode(outputs(), limits)
    if limits.score_threshold < 1:
        assert all(len(image["scores"]) > 5 for image in expected), "nothing to compare"
    for ours, image, photograph in zip(found, expected, photographs()[:NUM_IMAGES], strict=True):
        boxes = ENTRY.preprocess.to_source(ours.boxes, *photograph.shape[:2])
        assert (np.diff(ours.scores) <= 0).all()
        assert_same_detections(
            Detections(boxes, ours.scores, ours.labels),
            Detections(image["boxes"], image["scores"], image["labels"]),
        )


def test_parameters_have_torchvisions_names() -> None:
    assert set(SsdNet(ssdlite320).state_dict()) == set(reference().state_dict())
