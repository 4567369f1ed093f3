"""Entries of torchvision's models, with what their published weights state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath

from torch import nn
from torchvision.models import WeightsEnum

from split_infer_ros.models.candidates import suppress_all
from split_infer_ros.models.classifier import classify
from split_infer_ros.models.entry import Decode, ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess


def classifier_entry(
    name: str, *, title: str, build: Callable[..., nn.Module], published: WeightsEnum, default_split_point: str
) -> ModelEntry:
    """Makes the entry of a classifier, with the size, pre-processing and labels that its weights state.

    Args:
        name: the name by which users choose it.
        title: its name for people.
        build: torchvision's function that builds it.
        published: its published weights.
        default_split_point: as in ``ModelEntry``.
    """
    transforms = published.transforms()
    size = transforms.crop_size[0]
    return ModelEntry(
        name=name,
        summary=f"{title}, 1,000 classes of ImageNet",
        build=partial(build, weights=None),
        weights=_download(published),
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
        weights=_download(published),
        preprocess=preprocess,
        labels=tuple(published.meta["categories"]),
        default_split_point=default_split_point,
        decode=decode,
    )


def _download(published: WeightsEnum) -> Weights:
    return Weights(url=published.url, file_name=PurePosixPath(published.url).name)
