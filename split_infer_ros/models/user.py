"""Loads models of users: a user's function makes the model, or a file holds it as an exported program.

A torch module or an exported program must be a classifier. It takes float32 (N, 3, H, W), pre-processed as for
ImageNet, and gives logits (N, classes). A program states its input size. A module states it in its attribute
``image_size``, which is (height, width) or one number for both; the default is 224x224. Labels come from the attribute
``labels``, and are numbers if there is none.

For a model of any other kind, the function returns a ``ModelEntry``. It may get the entry of an ONNX file from
``split_infer_ros.onnx_entry`` and change that entry. Detections cannot hold masks and keypoints. A model that gives
them is refused, so that they do not get lost unnoticed.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from pickle import UnpicklingError
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor, fx, nn

from split_infer_ros.errors import ConfigurationError, first_line
from split_infer_ros.models.classifier import classify
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import ModelEntry, outputs_of
from split_infer_ros.models.preprocess import RESIZE_RATIO, Preprocess
from split_infer_ros.models.user_names import PROGRAM_SUFFIX, check_user_code
from split_infer_ros.runtime.search_path import search_user_folders
from split_infer_ros.runtime.user_files import is_regular, user_path

IMAGE_SIZE = "image_size"
UNSUPPORTED_OUTPUTS = ("masks", "keypoints")
OBJECT_PREFIXES = ("custom_obj_", "opaque_obj_")  # names begin so in an exported program if torch unpickles the file
ONLY_TENSORS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch reads it from the environment at each load

_loading = threading.Lock()  # the whole process has one environment


def load_user_model(name: str, *, allow_user_code: bool) -> ModelEntry:
    """Runs a factory or loads a program, and returns the entry of the user's model.

    Args:
        name: ``package.module:factory`` or ``FILE.pt2``.
        allow_user_code: whether the user's code may run.

    Raises:
        ConfigurationError: the code may not run, it fails, or it does not give a model.
    """
    check_user_code(name, allow_user_code=allow_user_code)
    model = _load_program(name) if name.endswith(PROGRAM_SUFFIX) else _call_factory(name)
    return model if isinstance(model, ModelEntry) else _classifier(name, model)


def _call_factory(name: str) -> nn.Module | ModelEntry:
    module_name, _, attribute = name.partition(":")
    search_user_folders()
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
        model = factory()
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        raise ConfigurationError(f"model '{name}' cannot be made ({type(error).__name__}: {error}).") from error
    if not isinstance(model, (nn.Module, ModelEntry)):
        raise ConfigurationError(
            f"model '{name}' returns a {type(model).__name__}; a factory returns a torch.nn.Module or a ModelEntry."
        )
    return model


def _load_program(name: str) -> nn.Module:
    path = user_path(name)
    if not is_regular(path):
        raise ConfigurationError(f"There is no exported program {path}.")
    try:
        _refuse_objects(path)
        with contextlib.suppress(ImportError):
            import torchvision  # noqa: F401 - a program may hold its operators, which this registers
        with _only_tensors():
            program = torch.export.load(path)
        exported = program.module()
        module = fx.GraphModule(exported, exported.graph)  # unlike ``exported``, it has eval()
        (images,) = [node.meta["val"].shape for node in module.graph.find_nodes(op="placeholder")]
        image_size = tuple(int(length) for length in images[2:])
    except Exception as error:  # a broken file can make its reader raise anything
        reason = first_line(error)
        if isinstance(error, UnpicklingError):  # torch would advise to load it all the same
            reason = "it is damaged, or holds pickled objects other than tensors, which are never loaded"
        raise ConfigurationError(
            f"{path} cannot be read as an exported program that takes images ({reason}); torch.export.save makes one."
        ) from error
    if not isinstance(images[0], torch.SymInt):
        raise ConfigurationError(
            f"{path} takes {int(images[0])} images at a time and no other number; export it with dynamic_shapes="
            "({0: torch.export.Dim('batch')},)."
        )
    setattr(module, IMAGE_SIZE, image_size)
    return module


@contextlib.contextmanager
def _only_tensors() -> Iterator[None]:
    """Makes torch load nothing but tensors from pickles, whatever a file or a caller asks for."""
    with _loading:
        before = os.environ.get(ONLY_TENSORS)
        os.environ[ONLY_TENSORS] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[ONLY_TENSORS]
            else:
                os.environ[ONLY_TENSORS] = before


def _refuse_objects(path: Path) -> None:
    """Refuses an archive with pickled objects, which run code as they are loaded.

    Raises:
        BadZipFile, ValueError: the file is no archive, or holds such an object.
    """
    with ZipFile(path) as archive:
        for name in archive.namelist():
            if PurePosixPath(name).name.startswith(OBJECT_PREFIXES):
                raise ValueError(f"it holds the pickled object {name}, which is never loaded")


def _classifier(name: str, module: nn.Module) -> ModelEntry:
    """Makes the entry of a module, which must behave as a classifier."""
    size = getattr(module, IMAGE_SIZE, 224)
    height, width = (size, size) if isinstance(size, int) else size
    labels = tuple(str(label) for label in getattr(module, "labels", ()))
    outputs = _run(
        name, lambda images: module.eval()(images), (3, height, width), "; its attribute image_size is (height, width)"
    )
    logits = outputs[0] if isinstance(outputs, (tuple, list)) and len(outputs) == 1 else outputs
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(labels) not in (0, logits.shape[1]):
        expected = f"(2, {len(labels) or 'classes'})"
        raise ConfigurationError(
            f"model '{name}' gives {_described(logits)} where logits {expected} were expected; for anything but a "
            "classifier, return a ModelEntry."
        )
    return ModelEntry(
        name=name,
        summary=f"{type(module).__name__}, {logits.shape[1]:,} classes",
        build=lambda: module,
        weights=None,
        preprocess=Preprocess(height, width, shorter_side=round(RESIZE_RATIO * max(height, width))),
        labels=labels or tuple(str(number) for number in range(logits.shape[1])),
        default_split_point=None,
        decode=classify(height, width),
    )


def check_detections(entry: ModelEntry, module: Callable[[Tensor], Any]) -> None:
    """Checks on two black images that a user's model and its decode function fit together.

    Args:
        entry: the model's entry.
        module: the whole model, or a function that runs it if it is an ONNX graph.

    Raises:
        ConfigurationError: the model or its decode function fails, gives masks or keypoints, or the result is no list
            of ``Detections``. The error describes what came.
    """
    outputs = _run(entry.name, module, entry.image_shape)
    try:
        with torch.inference_mode():
            found = entry.detections_of(outputs_of(outputs), Limits(score_threshold=0.0))
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        raise ConfigurationError(
            f"The decode of model '{entry.name}' cannot read the model's outputs for two images, {_described(outputs)} "
            f"({type(error).__name__}: {error})."
        ) from error
    _refuse_unsupported(entry.name, found)
    if not isinstance(found, list) or len(found) != 2 or not all(map(_are_detections, found)):
        raise ConfigurationError(
            f"The decode of model '{entry.name}' gives {_described(found)} for two images; a list of two Detections "
            "was expected, each boxes float32 (n, 4), scores float32 (n,) and labels int64 (n,)."
        )


def _run(name: str, module: Callable[[Tensor], Any], image_shape: tuple[int, ...], hint: str = "") -> Any:
    """Returns what a model gives for two black images. ``hint`` ends the sentence of the error if the model fails."""
    shape = (2, *image_shape)
    try:
        with torch.inference_mode():
            outputs = module(torch.zeros(shape))
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        raise ConfigurationError(
            f"model '{name}' does not take float32 {shape} ({type(error).__name__}: {error}){hint}."
        ) from error
    _refuse_unsupported(name, outputs)
    return outputs


def _are_detections(found: object) -> bool:
    if type(found) is not Detections:
        return False
    parts = found.boxes, found.scores, found.labels
    if not all(isinstance(part, np.ndarray) for part in parts) or found.scores.ndim != 1:
        return False
    shapes = [(len(found), 4), (len(found),), (len(found),)]
    dtypes = [np.float32, np.float32, np.int64]
    return [part.shape for part in parts] == shapes and [part.dtype for part in parts] == dtypes


def _refuse_unsupported(model_name: str, outputs: Any) -> None:
    """Refuses outputs with the names that torchvision's Mask R-CNN and Keypoint R-CNN give to masks and keypoints."""
    for output in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
        has = output.__contains__ if isinstance(output, Mapping) else partial(hasattr, output)
        lost = list(filter(has, UNSUPPORTED_OUTPUTS))
        if lost:
            raise ConfigurationError(
                f"model '{model_name}' gives {' and '.join(lost)} ({_described(output)}), which would be lost, because "
                "detections are boxes, scores and labels; use a model without them, or return a ModelEntry that gives "
                "only boxes, scores and labels."
            )


def _described(value: Any) -> str:
    """Describes an output of a model for people, by dtypes and shapes."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    if isinstance(value, Detections):
        parts = {name: getattr(value, name) for name in ("boxes", "scores", "labels")}
        return f"Detections of {_described(parts)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_described(part)}' for key, part in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}: {', '.join(map(_described, value))}"
    return f"a {type(value).__name__}"
