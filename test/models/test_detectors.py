"""Detectors find the same objects as torchvision's own, with the same weights and the same input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import torch
from comparisons import assert_same_detections
from photographs import photograph_batch
from torch import Tensor, nn
from torchvision.models import detection as zoo
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from split_infer_ros.models import dense, faster_rcnn, ssd, ssd_resnet
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import Decode
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.models.weights import load_weights

pytestmark = pytest.mark.numeric

Pair = tuple[nn.Module, nn.Module, Tensor]
UNTRAINED = {"weights": None, "weights_backbone": None}
SMALL_SSD = partial(ssd_resnet.ssd_resnet50, 128)


@dataclass(frozen=True)
class Case:
    """A detector of this package and the one of torchvision.

    Attributes:
        ours, reference: build them.
        height, width: of the input.
        factors: of weights, by a part of their names, so that outputs resemble those of a trained detector.
        decode: None for the catalogue's.
        images: of the batch.
    """

    ours: Callable[[], nn.Module]
    reference: Callable[[], nn.Module]
    height: int
    width: int
    factors: dict[str, float] = field(default_factory=dict)
    decode: Decode | None = None
    images: int = 2


# Inputs are smaller than the catalogue's where the network allows it, to save time.
CASES = {
    "ssd300": Case(
        partial(ssd.SsdNet, ssd.ssd300),
        partial(zoo.ssd300_vgg16, **UNTRAINED),
        height=300,
        width=300,
        factors={"regression": 0.5},
        images=1,
    ),
    "ssd_resnet50": Case(
        partial(ssd.SsdNet, SMALL_SSD),
        SMALL_SSD,
        height=128,
        width=128,
        factors={"regression": 0.5},
        decode=ssd.ssd_decode(SMALL_SSD),
    ),
    "fasterrcnn_mobilenet_320": Case(
        partial(faster_rcnn.FasterRcnn, 192, 256),
        partial(zoo.fasterrcnn_mobilenet_v3_large_320_fpn, **UNTRAINED),
        height=192,
        width=256,
    ),
    "retinanet": Case(
        partial(dense.RetinaNet, 160, 224),
        partial(zoo.retinanet_resnet50_fpn, **UNTRAINED),
        height=160,
        width=224,
        factors={"cls_logits": 0.02, "bbox_reg": 0.3},  # keeps scores far enough from 1 to order objects
    ),
    "fcos": Case(partial(dense.Fcos, 160, 224), partial(zoo.fcos_resnet50_fpn, **UNTRAINED), height=160, width=224),
}


@pytest.fixture(scope="module")
def pair(name: str) -> Pair:
    """Our detector, torchvision's with the same weights, and photographs (N, 3, height, width).

    One pair at a time: all of them together take 2 GB.
    """
    case = CASES[name]
    images = photograph_batch(case.height, case.width)[
        : case.images
    ].contiguous()  # the layout of torchvision's batches
    ours = randomise(case.ours(), images)
    with torch.no_grad():
        for weight, parameter in ours.named_parameters():
            parameter.mul_(next((factor for part, factor in case.factors.items() if part in weight), 1.0))
    reference = case.reference().eval()
    for module, other in zip(reference.backbone.modules(), ours.backbone.modules(), strict=True):  # type: ignore[union-attr, operator]
        if isinstance(module, nn.BatchNorm2d):
            module.eps = other.eps  # type: ignore[assignment]
    reference.load_state_dict(ours.state_dict())
    sides = min(case.height, case.width), max(case.height, case.width)
    reference.transform = GeneralizedRCNNTransform(*sides, [0.0] * 3, [1.0] * 3, size_divisible=1, _skip_resize=True)
    return ours, reference, images


@pytest.mark.parametrize("name", CASES, scope="module")
def test_the_same_objects_are_found(name: str, pair: Pair) -> None:
    ours, reference, images = pair
    limits = Limits(0.2, 0.4, 300)
    post = reference.roi_heads if hasattr(reference, "roi_heads") else reference
    post.score_thresh, post.nms_thresh = limits.score_threshold, limits.nms_threshold  # type: ignore[union-attr, assignment]
    post.detections_per_img = limits.max_detections  # type: ignore[union-attr, assignment]
    with torch.inference_mode():
        expected = reference(list(images))
        found = (CASES[name].decode or find_model(name).decode)(ours(images), limits)
    assert sum(len(image["scores"]) for image in expected) > 5, "nothing to compare"
    assert len(torch.cat([image["labels"] for image in expected]).unique()) > 2
    for detections, image in zip(found, expected, strict=True):
        assert_same_detections(detections, Detections(image["boxes"], image["scores"], image["labels"]))


def test_proposals_are_padded_with_empty_boxes() -> None:
    boxes = torch.tensor([[[0.0, 0, 8, 8], [0, 0, 8, 7], [4, 4, 4, 9], [20, 20, 30, 30], [0, 0, 8, 8]]])
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.01, 0.6]])
    levels = torch.tensor([0, 0, 0, 0, 1])
    found = faster_rcnn.distinct(boxes, scores, levels, min_score=0.05, iou_threshold=0.7, count=4)
    assert found.tolist() == [[[0, 0, 8, 8], [0, 0, 8, 8], [0] * 4, [0] * 4]]


@pytest.mark.parametrize("name", ["fasterrcnn_mobilenet_320", "retinanet"], scope="module")
def test_published_files_with_older_names_load(name: str, pair: Pair, tmp_path: Path) -> None:
    """torchvision's files of these models use older names of the convolutions in their heads."""
    ours, _, images = pair
    state = {key: value for key, value in ours.state_dict().items() if not key.endswith("num_batches_tracked")}
    older = {}
    for key, value in state.items():
        for depth in range(4):
            step = f"conv.{2 * depth}." if name == "retinanet" else "conv."
            if ("rpn.head" in key) or ("_head.conv" in key):
                key = key.replace(f"conv.{depth}.0.", step)
        older[key] = value
    assert older.keys() != state.keys()
    torch.save(older, tmp_path / "older.pth")
    fresh = CASES[name].ours().eval()
    load_weights(fresh, find_model(name), str(tmp_path / "older.pth"))
    with torch.inference_mode():
        for again, before in zip(fresh(images), ours(images), strict=True):
            assert torch.equal(again, before)  # the same module with copied weights
