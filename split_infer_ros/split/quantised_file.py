"""Where a quantised model is kept: a file in the user's cache, for one model, its weights and versions of packages."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.precision_checks import has_vnni
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.runtime.cache import cache_path
from split_infer_ros.runtime.files import write_whole
from split_infer_ros.split.manifest import Manifest
from split_infer_ros.split.network import Network
from split_infer_ros.split.split_points import write_split_points
from split_infer_ros.telemetry.machine import engine_version

if TYPE_CHECKING:
    import onnx

FORMAT = 2  # of the file, and of how it is made; a change of either raises it, and models are then quantised again
LOSS = "split_infer_ros.loss"  # key in the metadata: the loss of quality that the user accepted, in a sentence


def quantised_path(network: Network) -> Path:
    """Returns the path of the file that holds a model in int8. The file need not exist.

    Its name depends on:

    - the model's operations and weights, and the size of its images;
    - whether the processor has VNNI;
    - the version of OpenVINO, with which the results were judged;
    - for a model of torch, the versions that export it.

    Raises:
        ConfigurationError: a model of this kind cannot be quantised.
    """
    if not network.content:
        raise ConfigurationError(
            f"{network.entry.name} is {network.kind}, so it cannot be quantised: export it to ONNX, and quantise the "
            "file."
        )
    weights = "8 bits" if has_vnni() else "7 bits"
    version = str(engine_version(Engine.OPENVINO.value))
    facts = (str(FORMAT), network.content, str(network.entry.image_shape), version, weights)
    return cache_path("int8", " ".join(facts), ".onnx")


def find_quantised(network: Network) -> Path:
    """Returns the path of the file that holds a model in int8.

    Raises:
        ConfigurationError: there is no file for this model, these weights and versions.
    """
    path = quantised_path(network)
    if not path.is_file():
        raise ConfigurationError(
            f"{network.entry.name} was not quantised with these weights and versions: run `split_infer_ros quantise "
            f"{network.entry.name} --images FOLDER` first."
        )
    return path


def read_quantised(network: Network) -> tuple[OnnxGraph, Manifest]:
    """Returns the graph of a model in int8, and its manifest. The file is parsed only when its nodes are needed.

    Raises:
        ConfigurationError: there is no file for this model, these weights and versions, or the file is damaged.
    """
    path = find_quantised(network)
    digest = _checked_digest(path)

    def read() -> OnnxGraph:
        from split_infer_ros.onnx.file import read_onnx  # here, because onnx is optional

        if _checked_digest(path) != digest:
            raise ConfigurationError(f"{path} has changed since it was loaded; load the model again.")
        return read_onnx(path)

    split_points = write_split_points(network.split_points)  # the split points of the model in int8 follow from these
    manifest = Manifest.of(f"{digest} {split_points}", str(path))
    return manifest.graph(f"{network.entry.name} in int8", "whole", read), manifest


def _checked_digest(path: Path) -> str:
    """Returns the digest of a quantised model. Refuses a file that is not as it was written, so no engine sees it."""
    try:
        digest = _digest_path(path).read_bytes()
        is_whole = digest == _digest(path.read_bytes())
    except OSError:
        is_whole = False
    if not is_whole:
        raise ConfigurationError(f"{path} is not as it was written; run `split_infer_ros quantise` again.")
    return digest.decode()


def keep_quantised(network: Network, proto: onnx.ModelProto) -> Path:
    """Writes the graph of a model in int8, as a whole or not at all, and returns its path.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    path = quantised_path(network)
    try:
        data = proto.SerializeToString()
        write_whole(path, data)
        write_whole(_digest_path(path), _digest(data))
    except (OSError, ValueError) as error:  # protobuf writes no more than 2 GiB
        raise ConfigurationError(f"{path} cannot be written ({error}), so the quantised model is not kept.") from error
    return path


def _digest_path(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
