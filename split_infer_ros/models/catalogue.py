"""The models that are known by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath

from torch import nn
from torchvision import models as zoo
from torchvision.models import detection as zoo_detection

from split_infer_ros.errors import UnknownModelError
from split_infer_ros.models import shapes, ssdlite
from split_infer_ros.models.classifier import classify
from split_infer_ros.models.entry import ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess


def find_model(name: str) -> ModelEntry:
    """The entry of that name.

    Raises:
        UnknownModelError: there is none; the error lists those that there are.
    """
    try:
        return CATALOGUE[name]
    except KeyError:
        close = difflib.get_close_matches(name, CATALOGUE, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise UnknownModelError(f"There is no model '{name}'.{hint} There are: {', '.join(CATALOGUE)}.") from None


def _classifier(
    name: str, title: str, build: Callable[..., nn.Module], published: zoo.WeightsEnum, default_cut: str
) -> ModelEntry:
    """A classifier of torchvision's: size, pre-processing and labels as its weights state them."""
    preset = published.transforms()
    size = preset.crop_size[0]
    return ModelEntry(
        name=name,
        summary=f"{title}, 1,000 classes of ImageNet",
        build=partial(build, weights=None),
        weights=_download(published),
        preprocess=Preprocess(
            size,
            size,
            preset.resize_size[0],
            interpolation=preset.interpolation.value,
            mean=tuple(preset.mean),
            std=tuple(preset.std),
        ),
        labels=tuple(published.meta["categories"]),
        default_cut=default_cut,
        decode=classify(size, size),
    )


def _download(published: zoo.WeightsEnum) -> Weights:
    return Weights(url=published.url, file_name=PurePosixPath(published.url).name)


_IMAGENET = tuple(zoo.ResNet18_Weights.IMAGENET1K_V1.meta["categories"])
_SSDLITE = zoo_detection.SSDLite320_MobileNet_V3_Large_Weights.COCO_V1

CATALOGUE: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in (
        ModelEntry(
            name="shapes",
            summary="finds circles, squares and triangles; its weights are part of this package",
            build=shapes.ShapesNet,
            weights=Weights(path=shapes.WEIGHTS),
            preprocess=Preprocess(shapes.HEIGHT, shapes.WIDTH, mean=shapes.MEAN, std=shapes.STD),
            labels=shapes.LABELS,
            default_cut=shapes.DEFAULT_CUT,
            decode=shapes.decode,
        ),
        ModelEntry(
            name="ssdlite320",
            summary="SSDlite320 with MobileNetV3-Large, 90 classes of COCO",
            build=ssdlite.SsdliteNet,
            weights=_download(_SSDLITE),
            preprocess=Preprocess(
                ssdlite.SIZE, ssdlite.SIZE, antialias=False, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
            ),
            labels=tuple(_SSDLITE.meta["categories"]),
            default_cut="output",
            decode=ssdlite.decode,
        ),
        _classifier(
            "mobilenet_v2", "MobileNetV2", zoo.mobilenet_v2, zoo.MobileNet_V2_Weights.IMAGENET1K_V1, "classifier.0"
        ),
        _classifier(
            "efficientnet_b2",
            "EfficientNet-B2",
            zoo.efficientnet_b2,
            zoo.EfficientNet_B2_Weights.IMAGENET1K_V1,
            "classifier.0",
        ),
        ModelEntry(
            name="vit_tiny",
            summary="ViT-Tiny, 1,000 classes of ImageNet; nobody publishes weights of this form",
            build=partial(
                zoo.VisionTransformer,
                image_size=224,
                patch_size=16,
                num_layers=12,
                num_heads=3,
                hidden_dim=192,
                mlp_dim=768,
            ),
            weights=Weights(),
            preprocess=Preprocess(224, 224, 256),
            labels=_IMAGENET,
            default_cut="getitem",
            decode=classify(224, 224),
        ),
        _classifier("resnet18", "ResNet-18", zoo.resnet18, zoo.ResNet18_Weights.IMAGENET1K_V1, "flatten"),
        _classifier("resnet50", "ResNet-50", zoo.resnet50, zoo.ResNet50_Weights.IMAGENET1K_V2, "flatten"),
        _classifier(
            "squeezenet1_0",
            "SqueezeNet 1.0",
            zoo.squeezenet1_0,
            zoo.SqueezeNet1_0_Weights.IMAGENET1K_V1,
            "classifier.3",
        ),
        _classifier("alexnet", "AlexNet", zoo.alexnet, zoo.AlexNet_Weights.IMAGENET1K_V1, "classifier.5"),
        _classifier("vgg16", "VGG-16", zoo.vgg16, zoo.VGG16_Weights.IMAGENET1K_V1, "classifier.5"),
    )
}
