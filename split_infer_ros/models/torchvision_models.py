"""What torchvision's published weights state: their labels, where they are, and entries of its detectors.

Importing torchvision takes seconds. So only modules of its networks import this one, at their own import.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

from torch import nn
from torchvision.models import ResNet18_Weights, WeightsEnum
from torchvision.models.detection import SSD300_VGG16_Weights

from split_infer_ros.models.candidates import suppress_all
from split_infer_ros.models.entry import Decode, ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess

COCO_LABELS = tuple(SSD300_VGG16_Weights.COCO_V1.meta["categories"])  # with the background and gaps
IMAGENET_LABELS = tuple(ResNet18_Weights.IMAGENET1K_V1.meta["categories"])


def detector_entry(
    name: str,
    *,
    title: str,
    build: Callable[[], nn.Module],
    published: WeightsEnum,
    preprocess: Preprocess,
    decode: Decode = suppress_all,
    default_split_point: str = "output",
) -> ModelEntry:
    """Makes the entry of a detector, whose weights state nothing about pre-processing.

    Args:
        name: the name by which users choose it.
        title: its name for people.
        build: builds the network that can be split.
        published: its published weights.
        preprocess, decode, default_split_point: as in ``ModelEntry``.
    """
    return ModelEntry(
        name=name,
        summary=f"{title}, 90 classes of COCO",
        build=build,
        weights=download_of(published),
        preprocess=preprocess,
        labels=tuple(published.meta["categories"]),
        default_split_point=default_split_point,
        decode=decode,
    )


def download_of(published: WeightsEnum) -> Weights:
    """Returns the file of published weights as the source of a model's weights."""
    return Weights(url=published.url, file_name=PurePosixPath(published.url).name)
