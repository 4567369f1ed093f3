"""Classifiers of the library timm, where it is installed: ``timm:NAME``."""

from __future__ import annotations

import difflib
from functools import partial

from split_infer_ros.errors import ConfigurationError, UnknownModelError
from split_infer_ros.models.classifier import IMAGENET_LABELS, classify
from split_infer_ros.models.entry import ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess

PREFIX = "timm:"


def find(name: str) -> ModelEntry:
    """The entry of a model of timm's, with the size, pre-processing and classes that its weights state.

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
    of_timm = name.removeprefix(PREFIX)
    facts = timm.get_pretrained_cfg(of_timm) if timm.is_model(of_timm) else None
    if facts is None:
        close = difflib.get_close_matches(of_timm, timm.list_models(), n=3)
        hint = f" Close ones: {', '.join(close)}." if close else ""
        raise UnknownModelError(f"timm {timm.__version__} has no model '{of_timm}'.{hint}")
    _, height, width = facts.input_size
    shorter_side = None if facts.crop_mode == "squash" else int(max(height, width) / facts.crop_pct)
    classes = facts.num_classes
    return ModelEntry(
        name=name,
        summary=f"{of_timm} of timm, {classes:,} classes",
        build=partial(timm.create_model, of_timm),
        weights=Weights(fetch=lambda: timm.create_model(of_timm, pretrained=True).state_dict()),
        preprocess=Preprocess(
            height,
            width,
            shorter_side,
            interpolation=facts.interpolation,
            mean=tuple(facts.mean),
            std=tuple(facts.std),
        ),
        labels=IMAGENET_LABELS if classes == len(IMAGENET_LABELS) else tuple(str(label) for label in range(classes)),
        default_split_point=None,
        decode=classify(height, width),
    )
