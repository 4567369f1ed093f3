"""Identifies the source of a model's weights, so that a packed file of these weights is found without loading them."""

from __future__ import annotations

from split_infer_ros.models.named_weights import NamedWeights
from split_infer_ros.models.onnx_models import is_onnx_file
from split_infer_ros.models.user_names import TIMM_PREFIX, is_user_model
from split_infer_ros.runtime.files import content_digest
from split_infer_ros.runtime.user_files import is_regular, user_path
from split_infer_ros.telemetry.machine import package_version


def weights_source(name: str, weights: str) -> str:
    """Returns a text that identifies the values of a model's weights: equal texts mean equal values.

    For named weights, the text names the packages that make or publish them, with their versions. For a file of
    weights, it has a digest of the file's content. The path of the file does not matter.

    Args:
        name: the model's name, as for ``find_model``.
        weights: as for ``load_weights``.

    Returns:
        The text. It is empty for a user's own model or ONNX file, and for a file of weights that does not exist. Only
        the values themselves then identify the weights.
    """
    if is_user_model(name) or is_onnx_file(name):
        return ""
    if weights in {named.value for named in NamedWeights}:
        packages = ("split_infer_ros", "torch", "torchvision", *(["timm"] if name.startswith(TIMM_PREFIX) else []))
        return ", ".join([f"{weights} of {name}", *(f"{package} {package_version(package)}" for package in packages)])
    path = user_path(weights)
    return f"file {content_digest(path)}" if is_regular(path) else ""
