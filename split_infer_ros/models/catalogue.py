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
    name: str, summary: str, build: Callable[..., nn.Module], published: zoo.WeightsEnum, default_cut: str
) -> ModelEntry:
    """A classifier of torchvision's: size, pre-processing and labels as its weights state them."""
    preset = published.transforms()
    size = preset.crop_size[0]
    return ModelEntry(
        name=name,
        summary=summary,
        build=partial(build, weights=None),
        weights=_download(published),
        preprocess=Preprocess(size, size, preset.resize_size[0], mean=tuple(preset.mean), std=tuple(preset.std)),
        labels=tuple(published.meta["categories"]),
        default_cut=default_cut,
        decode=classify(size, size),
    )


def _download(published: zoo.WeightsEnum) -> Weights:
    return Weights(url=published.url, file_name=PurePosixPath(published.url).name)


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
            "mobilenet_v2",
            "MobileNetV2, 1,000 classes of ImageNet",
            zoo.mobilenet_v2,
            zoo.MobileNet_V2_Weights.IMAGENET1K_V1,
            "classifier.0",
        ),
        _classifier(
            "resnet18",
            "ResNet-18, 1,000 classes of ImageNet",
            zoo.resnet18,
            zoo.ResNet18_Weights.IMAGENET1K_V1,
            "flatten",
        ),
    )
}
