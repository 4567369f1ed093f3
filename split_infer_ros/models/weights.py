"""Loads a model's weights: default ones, those of a file, random ones, or none. No code in a file is run."""

from __future__ import annotations

import copy
import hashlib
import re
import shutil
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from split_infer_ros.errors import WeightsError
from split_infer_ros.images.encodings import RGB, Pixels
from split_infer_ros.models.darknet_weights import SUFFIX as DARKNET_SUFFIX
from split_infer_ros.models.darknet_weights import read_darknet_weights
from split_infer_ros.models.downloads import CONNECT_TIMEOUT_S
from split_infer_ros.models.entry import ModelEntry, Weights
from split_infer_ros.models.named_weights import SAFETENSORS_SUFFIX, NamedWeights
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.runtime.user_files import is_regular, user_path

NUM_SCENES = 4  # scenes on which random weights are calibrated


def load_weights(model: nn.Module, entry: ModelEntry, weights: str) -> None:
    """Gives a freshly built model its weights.

    Args:
        model: the result of ``entry.build``.
        entry: the model's entry.
        weights: a value of ``NamedWeights``, or the path of a safetensors file or of a state dict saved by torch.
            YOLOv3 and YOLOv4 also take Darknet's own file, with a name that ends in ``.weights``.

    Raises:
        WeightsError: the file does not exist, cannot be read, or holds weights of another model. Or default weights are
            asked for, but none are published, or they cannot be downloaded.
    """
    if weights == NamedWeights.NONE or (weights == NamedWeights.DEFAULT and entry.weights is None):
        return
    if weights == NamedWeights.RANDOM:
        randomise(model, _calibration_images(entry.preprocess))
        return
    if weights == NamedWeights.DEFAULT:
        source, state = _default_state(entry)
    else:
        source = weights
        state = _read_for(model, entry, user_path(weights))
    expected = model.state_dict()
    misshapen = [name for name in expected if name in state and state[name].shape != expected[name].shape]
    # A copy of the model is loaded first: only modules know older names of their weights, and a refusal must change
    # nothing.
    fitting = {name: state[name] for name in state if name not in misshapen}
    try:
        loaded = copy.deepcopy(model).load_state_dict(fitting, strict=False)
    except Exception as error:  # tensors that cannot be copied, such as sparse ones
        reason = str(error).strip().splitlines()[-1].strip()
        raise WeightsError(f"{source} holds tensors that {entry.name} cannot take ({reason}).") from error
    missing = [n for n in loaded.missing_keys if n not in misshapen and not n.endswith("num_batches_tracked")]
    surplus = loaded.unexpected_keys
    if missing or surplus or misshapen:
        first = (missing or surplus or misshapen)[0]
        raise WeightsError(
            f"{source} holds another model's weights than {entry.name}'s: of {len(expected)} tensors {len(missing)} "
            f"are missing, {len(misshapen)} have another shape and {len(surplus)} are surplus (the first: '{first}')."
        )
    model.load_state_dict(fitting, strict=False)


def _calibration_images(preprocess: Preprocess) -> Tensor:
    """Draws scenes as a model's input, float32 (NUM_SCENES, 3, h, w)."""
    from split_infer_ros.sources.scenes import draw_scene  # only here: it needs OpenCV

    images = [Pixels(draw_scene(0, index).image, RGB) for index in range(NUM_SCENES)]
    return torch.from_numpy(preprocess.normalise(preprocess.gather(images, preprocess.staging(NUM_SCENES))))


def _read_for(model: nn.Module, entry: ModelEntry, path: Path) -> dict[str, Tensor]:
    """Reads the user's file of weights for a model into a state dict."""
    if not is_regular(path):
        raise WeightsError(
            f"There is no weights file {path}; weights takes 'default', 'random', 'none' or the path of a file."
        )
    if entry.weights is None or entry.weights.darknet_file is None or path.suffix != DARKNET_SUFFIX:
        return _read(path)
    try:
        return read_darknet_weights(model, path)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read as weights ({error}).") from error


def _read(path: Path) -> dict[str, Tensor]:
    """Reads a file of weights into a state dict."""
    try:
        if path.suffix == SAFETENSORS_SUFFIX:
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken file can make its reader raise anything
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        if isinstance(error, UnpicklingError):  # torch's message would advise to load the file all the same
            reason = "it is damaged, or holds objects other than tensors, which are never loaded"
        raise WeightsError(
            f"{path} cannot be read as weights ({reason}); it must be a .safetensors file or a state dict saved by "
            "torch.save."
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise WeightsError(f"{path} holds a {type(state).__name__}, not a state dict of tensors by name.")
    return state


def _default_state(entry: ModelEntry) -> tuple[str, Mapping[str, Tensor]]:
    """Returns the source of the default weights, as errors name it, and the weights."""
    weights = entry.weights or Weights()
    if weights.path is not None:
        return str(weights.path), _read(weights.path)
    if weights.fetch is not None:
        try:
            return f"The default of {entry.name}", weights.fetch()
        except Exception as error:  # another library can raise anything
            raise WeightsError(f"The default weights of {entry.name} could not be loaded ({error}).") from error
    if weights.darknet_file is not None:
        raise WeightsError(
            f"{entry.name} has no default weights: set weights to the path of Darknet's {weights.darknet_file}, or of "
            "a file of this package's names, or to 'none' for untrained weights."
        )
    if weights.url is None:
        raise WeightsError(
            f"{entry.name} has no default weights, because none are published: set weights to the path of a file, or "
            "to 'none' for untrained weights."
        )
    path = Path(torch.hub.get_dir()) / "checkpoints" / str(weights.file_name)
    if not path.is_file():
        _download(entry, weights, path)
    return str(path), _read(path)


def _check_digest(path: Path, file_name: str) -> None:
    """Refuses a broken download. torch.hub's files have the first digits of their SHA-256 in their names."""
    digest = re.search(r"-([0-9a-f]{8,})\.", file_name)
    if digest and not hashlib.sha256(path.read_bytes()).hexdigest().startswith(digest[1]):
        raise OSError(f"the download has {path.stat().st_size:,} bytes and is not {file_name}")


def _download(entry: ModelEntry, weights: Weights, path: Path) -> None:
    """Downloads default weights to ``path``. A broken download leaves nothing there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    try:
        with urllib.request.urlopen(str(weights.url), timeout=CONNECT_TIMEOUT_S) as response, part.open("wb") as file:
            shutil.copyfileobj(response, file)
        _check_digest(part, str(weights.file_name))
        part.replace(path)
    except (OSError, HTTPException) as error:
        part.unlink(missing_ok=True)
        raise WeightsError(
            f"The default weights of {entry.name} could not be downloaded ({error}): fetch {weights.url} elsewhere and "
            f"place it at {path}, or set weights to the path of a file, or to 'none' for untrained weights."
        ) from error
