"""Classifiers of the library timm, if it is installed: ``timm:NAME``."""

from __future__ import annotations

import difflib
from functools import partial

from split_infer_ros.errors import ConfigurationError, UnknownModelError
from split_infer_ros.models.classifier import classify
from split_infer_ros.models.entry import ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.models.user_names import TIMM_PREFIX


def find_timm_model(name: str) -> ModelEntry:
    """Returns the entry of a timm model, with the size, pre-processing and classes that timm states for its weights.

    Args:
        name: ``timm:NAME``.

    Raises:
        ConfigurationError: timm is not installed.
        UnknownModelError: timm has no such model.
    """
    try:
        import timm
    except ImportError as error:
        raise ConfigurationError(
            f"model '{name}' needs timm, which cannot be imported ({error}); pip install timm."
        ) from error
    from split_infer_ros.models.torchvision_models import IMAGENET_LABELS  # only here: it imports torchvision

    timm_name = name.removeprefix(TIMM_PREFIX)
    config = timm.get_pretrained_cfg(timm_name) if timm.is_model(timm_name) else None
    if config is None:
        close = difflib.get_close_matches(timm_name, timm.list_models(), n=3)
        hint = f" Close ones: {', '.join(close)}." if close else ""
        raise UnknownModelError(f"timm {timm.__version__} has no model '{timm_name}'.{hint}")
    _, height, width = config.input_size
    shorter_side = None if config.crop_mode == "squash" else int(max(height, width) / config.crop_pct)
    classes = config.num_classes
    return ModelEntry(
        name=name,
        summary=f"{timm_name} of timm, {classes:,} classes",
        build=partial(timm.create_model, timm_name),
        weights=Weights(fetch=lambda: timm.create_model(timm_name, pretrained=True).state_dict()),
        preprocess=Preprocess(
            height,
            width,
            shorter_side=shorter_side,
            interpolation=config.interpolation,
            mean=tuple(config.mean),
            std=tuple(config.std),
        ),
        labels=IMAGENET_LABELS if classes == len(IMAGENET_LABELS) else tuple(str(label) for label in range(classes)),
        default_split_point=None,
        decode=classify(height, width),
    )
