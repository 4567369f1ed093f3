from __future__ import annotations

import numpy as np
import pytest
import torch
from partitions import partitions_of
from torchvision import models as zoo
from torchvision.models import detection

from split_infer_ros.errors import UnknownModelError, WeightsError
from split_infer_ros.models.catalogue import CATALOGUE, find_model
from split_infer_ros.models.detections import Limits
from split_infer_ros.models.weights import load_weights
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec

PUBLISHED = {
    "mobilenet_v2": zoo.MobileNet_V2_Weights.IMAGENET1K_V1,
    "efficientnet_b2": zoo.EfficientNet_B2_Weights.IMAGENET1K_V1,
    "resnet18": zoo.ResNet18_Weights.IMAGENET1K_V1,
    "resnet50": zoo.ResNet50_Weights.IMAGENET1K_V2,
    "squeezenet1_0": zoo.SqueezeNet1_0_Weights.IMAGENET1K_V1,
    "alexnet": zoo.AlexNet_Weights.IMAGENET1K_V1,
    "vgg16": zoo.VGG16_Weights.IMAGENET1K_V1,
}
PUBLISHED_DETECTORS = {
    "ssdlite320": detection.SSDLite320_MobileNet_V3_Large_Weights.COCO_V1,
    "ssd300": detection.SSD300_VGG16_Weights.COCO_V1,
    "fasterrcnn_mobilenet_320": detection.FasterRCNN_MobileNet_V3_Large_320_FPN_Weights.COCO_V1,
    "retinanet": detection.RetinaNet_ResNet50_FPN_Weights.COCO_V1,
    "fcos": detection.FCOS_ResNet50_FPN_Weights.COCO_V1,
}
UNPUBLISHED = ("vit_tiny", "ssd_resnet50", "yolov3", "yolov4")
NAMES = ("shapes", *UNPUBLISHED, *PUBLISHED, *PUBLISHED_DETECTORS)
LARGE = (
    "retinanet",
    "fcos",
    "vgg16",
    "ssd300",
    "ssd_resnet50",
    "yolov3",
    "yolov4",
)  # slow; see test_every_split_point.py


def test_the_catalogue_has_these_models() -> None:
    assert set(CATALOGUE) == set(NAMES)
    for name in NAMES:
        assert find_model(name).name == name


@pytest.mark.parametrize(("name", "hint"), [("mobilenetv2", "Did you mean 'mobilenet_v2'?"), ("", "")])
def test_an_unknown_model_is_refused_with_known_ones(name: str, hint: str) -> None:
    with pytest.raises(UnknownModelError) as refusal:
        find_model(name)
    message = str(refusal.value)
    assert f"'{name}'" in message
    assert all(known in message for known in NAMES)
    assert hint in message
    assert hint or "Did you mean" not in message


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LARGE])
def test_an_entry_fits_its_model(name: str) -> None:
    """Each model, split at its default split point and decoded, gives detections for each image."""
    model = load_model(ModelSpec(name, "none", "cpu"))
    entry = model.entry
    default, partitions = model.split_point("default"), partitions_of(model, "default")
    assert entry.default_split_point in (None, default.name, *default.aliases)
    height, width = entry.image_shape[1:]
    images = torch.zeros((2, 3, height, width)).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        found = entry.decode(partitions.head(*partitions.backbone(images)), Limits(0.0, 0.5, 7))
    assert len(found) == 2
    for detections in found:
        assert 1 <= len(detections) <= 7
        assert detections.boxes.shape == (len(detections), 4)
        assert detections.boxes.dtype == detections.scores.dtype == np.float32
        assert detections.labels.dtype == np.int64
        assert (detections.boxes >= 0).all()
        assert (detections.boxes <= [width, height, width, height]).all()
        assert (np.diff(detections.scores) <= 0).all()
        assert 0 <= int(detections.labels.min()) <= int(detections.labels.max()) < len(entry.labels)


def test_labels_and_downloads_are_the_published_ones() -> None:
    for name, published in {**PUBLISHED, **PUBLISHED_DETECTORS}.items():
        entry = find_model(name)
        assert list(entry.labels) == published.meta["categories"]
        assert entry.weights.url == published.url
        assert entry.weights.file_name is not None
        assert published.url.endswith(f"/{entry.weights.file_name}")
    for name in PUBLISHED_DETECTORS:
        assert find_model(name).labels[:3] == ("__background__", "person", "bicycle")


def test_detectors_without_weights_have_coco_classes() -> None:
    assert find_model("ssd_resnet50").labels == find_model("ssd300").labels
    labels = find_model("yolov3").labels
    assert labels == find_model("yolov4").labels
    assert labels == tuple(label for label in find_model("ssd300").labels[1:] if label != "N/A")
    assert len(labels) == len(set(labels)) == 80


@pytest.mark.parametrize("name", UNPUBLISHED)
def test_default_weights_that_nobody_publishes_are_refused(name: str) -> None:
    entry = find_model(name)
    with torch.device("meta"):
        model = entry.build()
    with pytest.raises(WeightsError, match=rf"{name} has no default weights.*'none'"):
        load_weights(model, entry, "default")
