"""Labels and addresses of torchvision's published weights, and entries for its detectors.

Importing torchvision takes seconds. So only the modules that define its networks import this one at their top.
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
    """Makes the entry of a detector.

    The caller says how images are pre-processed, because the weights of detectors do not state it.

    Args:
        name: the name by which users choose the model.
        title: the model's name in its summary.
        build: builds the network that can be split.
        published: the network's published weights.
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
    """Returns the address and the file name of published weights, as the source of a model's weights."""
    return Weights(url=published.url, file_name=PurePosixPath(published.url).name)
