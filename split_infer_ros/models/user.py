"""Models of the user's own: what a function of theirs returns, or an exported program.

A module, or a program, is taken for a classifier: it takes float32 (N, 3, H, W), pre-processed as for ImageNet, and
gives logits (N, classes). Its input size is its attribute ``image_size``, (height, width) or one number for both, else
224x224; of a program it is part of the program. Its labels are its attribute ``labels``, else numbers. Whatever else a
model is, its factory returns a ModelEntry. Masks and keypoints have no place in detections: a model that gives them is
refused, so that they are not lost unseen.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models import timm_models
from split_infer_ros.models.classifier import classify
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.preprocess import Preprocess

PROGRAM = ".pt2"
IMAGE_SIZE = "image_size"
LOST = ("masks", "keypoints")
SHOWN = 256 / 224  # of the input's size, what the shorter side is resized to before the middle is split out


def is_user_model(name: str) -> bool:
    """True for ``package.module:factory`` and ``FILE.pt2``."""
    return (":" in name and not name.startswith(timm_models.PREFIX)) or name.endswith(PROGRAM)


def load(name: str, allowed: bool) -> ModelEntry:
    """The user's model.

    Args:
        name: ``package.module:factory`` or ``FILE.pt2``.
        allowed: whether the user's code may run.

    Raises:
        ConfigurationError: it may not, it fails, or what it gives is no model.
    """
    if not allowed:
        raise ConfigurationError(
            f"model '{name}' is loaded by running its code; set allow_user_code to true if you trust it."
        )
    made = _load_program(name) if name.endswith(PROGRAM) else _call_factory(name)
    return made if isinstance(made, ModelEntry) else _classifier(name, made)


def _call_factory(name: str) -> nn.Module | ModelEntry:
    module_name, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
        made = factory()
    except Exception as error:  # the user's
        raise ConfigurationError(f"model '{name}' cannot be made ({type(error).__name__}: {error}).") from error
    if not isinstance(made, (nn.Module, ModelEntry)):
        raise ConfigurationError(
            f"model '{name}' returns a {type(made).__name__}; a factory returns a torch.nn.Module or a ModelEntry."
        )
    return made


def _load_program(name: str) -> nn.Module:
    path = Path(name).expanduser()
    if not path.is_file():
        raise ConfigurationError(f"There is no exported program {path}.")
    try:
        program = torch.export.load(path)
        exported = program.module()
        module = fx.GraphModule(exported, exported.graph)  # which takes eval()
        (images,) = [node.meta["val"].shape for node in module.graph.find_nodes(op="placeholder")]
        image_size = tuple(int(length) for length in images[2:])
    except Exception as error:  # what a broken file makes of its reader is anybody's guess
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigurationError(
            f"{path} cannot be read as an exported program that takes images ({reason}); torch.export.save makes one."
        ) from error
    if not isinstance(images[0], torch.SymInt):
        raise ConfigurationError(
            f"{path} takes {int(images[0])} images at a time, always; export it with dynamic_shapes="
            "({0: torch.export.Dim('batch')},)."
        )
    setattr(module, IMAGE_SIZE, image_size)
    return module


def _classifier(name: str, module: nn.Module) -> ModelEntry:
    size = getattr(module, IMAGE_SIZE, 224)
    height, width = (size, size) if isinstance(size, int) else size
    labels = tuple(str(label) for label in getattr(module, "labels", ()))
    try:
        with torch.inference_mode():
            logits = module.eval()(torch.zeros((2, 3, height, width)))
    except Exception as error:  # the user's
        raise ConfigurationError(
            f"model '{name}' does not take float32 (2, 3, {height}, {width}) ({type(error).__name__}: {error}); its "
            "attribute image_size is (height, width)."
        ) from error
    _refuse_what_would_be_lost(name, logits)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(labels) not in (0, logits.shape[1]):
        wanted = f"(2, {len(labels) or 'classes'})"
        raise ConfigurationError(
            f"model '{name}' gives {_told(logits)} where logits {wanted} were expected; for anything but a "
            "classifier, return a ModelEntry."
        )
    return ModelEntry(
        name=name,
        summary=f"{type(module).__name__}, {logits.shape[1]:,} classes",
        build=lambda: module,
        weights=None,
        preprocess=Preprocess(height, width, round(SHOWN * max(height, width))),
        labels=labels or tuple(str(number) for number in range(logits.shape[1])),
        default_split_point=None,
        decode=classify(height, width),
    )


def check_detections(entry: ModelEntry, module: nn.Module) -> None:
    """See that a model of the user's own and its decode go together, on two black images.

    Raises:
        ConfigurationError: what comes out is no list of ``Detections``; the error shows what it is.
    """
    try:
        with torch.inference_mode():
            outputs = module(torch.zeros((2, *entry.image_shape)))
    except Exception as error:  # the user's
        raise ConfigurationError(
            f"model '{entry.name}' does not take float32 {(2, *entry.image_shape)} ({type(error).__name__}: {error})."
        ) from error
    _refuse_what_would_be_lost(entry.name, outputs)
    try:
        with torch.inference_mode():
            found = entry.decode(outputs if isinstance(outputs, tuple) else (outputs,), Limits(0.0))
    except Exception as error:  # the user's
        raise ConfigurationError(
            f"The decode of model '{entry.name}' cannot read what that gives for two images, {_told(outputs)} "
            f"({type(error).__name__}: {error})."
        ) from error
    _refuse_what_would_be_lost(entry.name, found)
    if not isinstance(found, list) or len(found) != 2 or not all(map(_are_detections, found)):
        raise ConfigurationError(
            f"The decode of model '{entry.name}' gives {_told(found)} for two images; a list of two Detections was "
            "expected, each boxes float32 (n, 4), scores float32 (n,) and labels int64 (n,)."
        )


def _are_detections(found: object) -> bool:
    if type(found) is not Detections:
        return False
    parts = found.boxes, found.scores, found.labels
    if not all(isinstance(part, Tensor) for part in parts) or found.scores.ndim != 1:
        return False
    shapes = [(len(found), 4), (len(found),), (len(found),)]
    dtypes = [torch.float32, torch.float32, torch.int64]
    return [part.shape for part in parts] == shapes and [part.dtype for part in parts] == dtypes


def _refuse_what_would_be_lost(name: str, outputs: Any) -> None:
    """Torchvision's Mask R-CNN and Keypoint R-CNN, and all that name their results as they do."""
    for one in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
        lost = [part for part in LOST if (part in one if isinstance(one, Mapping) else hasattr(one, part))]
        if lost:
            raise ConfigurationError(
                f"model '{name}' gives {' and '.join(lost)} ({_told(one)}), which would be lost, since detections are "
                "boxes, scores and labels; take a model without, or return a ModelEntry that gives those alone."
            )


def _told(value: Any) -> str:
    """What a model gives, for people: dtypes and shapes."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, Detections):
        return f"Detections of {_told({name: getattr(value, name) for name in ('boxes', 'scores', 'labels')})}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_told(part)}' for key, part in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}: {', '.join(map(_told, value))}"
    return f"a {type(value).__name__}"
