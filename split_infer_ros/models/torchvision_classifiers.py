"""The classifiers of the catalogue with a network of torchvision's."""

from __future__ import annotations

from functools import partial

from torchvision import models as zoo

from split_infer_ros.models.classifier import classify
from split_infer_ros.models.entry import ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.models.torchvision_models import IMAGENET_LABELS, download_of


def _published(name: str, title: str, default_split_point: str, version: str = "IMAGENET1K_V1") -> ModelEntry:
    """Makes the entry of a classifier, with the size, pre-processing and labels that its weights state.

    Args:
        name: the name by which users choose the model, and torchvision's name of it.
        title: the model's name in its summary.
        default_split_point: as in ``ModelEntry``.
        version: torchvision's name of the network's published weights.
    """
    published = zoo.get_model_weights(name)[version]
    transforms = published.transforms()
    size = transforms.crop_size[0]
    return ModelEntry(
        name=name,
        summary=f"{title}, 1,000 classes of ImageNet",
        build=partial(zoo.get_model_builder(name), weights=None),
        weights=download_of(published),
        preprocess=Preprocess(
            size,
            size,
            shorter_side=transforms.resize_size[0],
            interpolation=transforms.interpolation.value,
            mean=tuple(transforms.mean),
            std=tuple(transforms.std),
        ),
        labels=tuple(published.meta["categories"]),
        default_split_point=default_split_point,
        decode=classify(size, size),
    )


_VIT_TINY = ModelEntry(
    name="vit_tiny",
    summary="ViT-Tiny, 1,000 classes of ImageNet; no weights of this network are published",
    build=partial(
        zoo.VisionTransformer, image_size=224, patch_size=16, num_layers=12, num_heads=3, hidden_dim=192, mlp_dim=768
    ),
    weights=Weights(),
    preprocess=Preprocess(224, 224, shorter_side=256),
    labels=IMAGENET_LABELS,
    default_split_point=None,
    decode=classify(224, 224),
)

ENTRIES = (
    _published("mobilenet_v2", "MobileNetV2", "classifier.0"),
    _published("efficientnet_b2", "EfficientNet-B2", "classifier.0"),
    _VIT_TINY,
    _published("resnet18", "ResNet-18", "flatten"),
    _published("resnet50", "ResNet-50", "flatten", "IMAGENET1K_V2"),
    _published("squeezenet1_0", "SqueezeNet 1.0", "classifier.3"),
    _published("alexnet", "AlexNet", "classifier.5"),
    _published("vgg16", "VGG-16", "classifier.5"),
)
