"""The catalogue: all models that the package knows by name."""

from __future__ import annotations

import difflib
import importlib

from split_infer_ros.errors import UnknownModelError
from split_infer_ros.models.downloads import DOWNLOADS, refuse_options
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.foreign_files import refuse_foreign_file
from split_infer_ros.models.onnx_models import is_onnx_file, read_onnx_file
from split_infer_ros.models.onnx_options import OnnxOptions
from split_infer_ros.models.user_names import TIMM_PREFIX, is_task, is_user_model

_MODULES = {
    "shapes": ("shapes",),
    "ssd": ("ssdlite320", "ssd300"),
    "faster_rcnn": ("fasterrcnn_mobilenet_320",),
    "dense": ("retinanet", "fcos"),
    "ssd_resnet": ("ssd_resnet50",),
    "yolov3": ("yolov3",),
    "yolov4": ("yolov4",),
    "torchvision_classifiers": (
        "mobilenet_v2",
        "efficientnet_b2",
        "vit_tiny",
        "resnet18",
        "resnet50",
        "squeezenet1_0",
        "alexnet",
        "vgg16",
    ),
}
CATALOGUE = {name: module for module, names in _MODULES.items() for name in names}
"""For each model's name, the module in this folder that defines the model.

A module is imported when somebody first asks for one of its models. Most networks come from torchvision, and importing
torchvision takes seconds.
"""


def find_model(name: str, *, allow_user_code: bool = False, onnx_options: OnnxOptions | None = None) -> ModelEntry:
    """Returns the entry of a model, which says how the model is built, fed and decoded.

    Args:
        name: a name of the catalogue, ``timm:NAME``, or a user's ``FILE.onnx``, ``package.module:factory`` or
            ``FILE.pt2``. For a model that is downloaded, it is the path of the downloaded file; see
            ``split.located_spec``.
        allow_user_code: whether a factory or an exported program may be loaded. Loading one may run any code. Loading
            an ONNX file runs none.
        onnx_options: what the user says about an ONNX file; None for the defaults. The file is not run to find out
            more: options, names and shapes alone decide how its outputs are read.

    Raises:
        UnknownModelError: there is no such model. The error lists the known ones.
        ConfigurationError: the model cannot be loaded, or options for ONNX files are given for another model.
    """
    options = onnx_options or OnnxOptions()
    if is_task(name):
        raise UnknownModelError(f"'{name}' is a task and no model: only a tenant of the node tenants runs it.")
    if name not in CATALOGUE and not name.startswith(TIMM_PREFIX):
        refuse_foreign_file(name)
    if is_onnx_file(name):
        file = read_onnx_file(name, options)
        return file.entry(file.recognise())
    refuse_options(name, options)
    if name.startswith(TIMM_PREFIX):
        from split_infer_ros.models.timm_models import find_timm_model  # only here: for classifiers of torch

        return find_timm_model(name)
    if is_user_model(name):
        from split_infer_ros.models.user import load_user_model  # only here: it imports torch

        return load_user_model(name, allow_user_code=allow_user_code)
    if name not in CATALOGUE:
        known = [*CATALOGUE, *DOWNLOADS]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise UnknownModelError(
            f"There is no model '{name}'.{hint} There are: {', '.join(known)}; and timm:NAME, "
            "FILE.onnx, package.module:factory and FILE.pt2."
        )
    module = importlib.import_module(f"{__package__}.{CATALOGUE[name]}")
    entries: tuple[ModelEntry, ...] = module.ENTRIES
    return next(entry for entry in entries if entry.name == name)
