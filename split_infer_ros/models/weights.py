"""A model's weights: its default ones, a file of the user's, random ones, or none; never by unpickling code."""

from __future__ import annotations

import copy
import hashlib
import re
import shutil
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from split_infer_ros.errors import WeightsError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.entry import ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.models.random_weights import randomise

DEFAULT, RANDOM, NONE = "default", "random", "none"
SCENES = 4  # by which random weights are set
CONNECT_S = 10.0


def load_weights(model: nn.Module, entry: ModelEntry, weights: str) -> None:
    """Give a freshly built model its weights.

    Args:
        model: as entry.build made it.
        entry: the model's entry.
        weights: ``default`` (shipped, or downloaded once), ``random`` (seeded; outputs answer to what is seen),
            ``none`` (as built) or the path of a safetensors file or of a state dict saved by torch.

    Raises:
        WeightsError: no such file, not readable, or another model's.
    """
    if weights == NONE or (weights == DEFAULT and entry.weights is None):
        return
    if weights == RANDOM:
        randomise(model, _scenes(entry.preprocess))
        return
    if weights == DEFAULT:
        source, state = _default_state(entry)
    else:
        source = weights
        state = _read(Path(weights).expanduser())
    expected = model.state_dict()
    unlike = [name for name in expected if name in state and state[name].shape != expected[name].shape]
    # Tried on a copy: modules may know older names of their weights, and what is refused must change nothing.
    fitting = {name: state[name] for name in state if name not in unlike}
    answer = copy.deepcopy(model).load_state_dict(fitting, strict=False)
    missing = [n for n in answer.missing_keys if n not in unlike and not n.endswith("num_batches_tracked")]
    surplus = answer.unexpected_keys
    if missing or surplus or unlike:
        first = (missing or surplus or unlike)[0]
        raise WeightsError(
            f"{source} holds another model's weights than {entry.name}'s: of {len(expected)} tensors {len(missing)} "
            f"are missing, {len(unlike)} have another shape and {len(surplus)} are surplus (the first: '{first}')."
        )
    model.load_state_dict(fitting, strict=False)


def _scenes(preprocess: Preprocess) -> Tensor:
    from split_infer_ros.sources.scenes import draw_scene  # needs OpenCV, which torch alone does not bring

    images = [Pixels(torch.from_numpy(draw_scene(0, index).image), (0, 1, 2)) for index in range(SCENES)]
    return preprocess.normalise(preprocess.gather(images, preprocess.staging(SCENES)))


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise WeightsError(
            f"There is no weights file {path}; weights takes 'default', 'random', 'none' or the path of a file."
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a broken file makes of its reader is anybody's guess
        raise WeightsError(
            f"{path} cannot be read as weights ({str(error).splitlines()[0] if str(error) else type(error).__name__}); "
            "it must be a .safetensors file or a state dict saved by torch.save."
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise WeightsError(f"{path} holds a {type(state).__name__}, not a state dict of tensors by name.")
    return state


def _default_state(entry: ModelEntry) -> tuple[str, Mapping[str, Tensor]]:
    """Where the default weights come from, and they."""
    weights = entry.weights or Weights()
    if weights.path is not None:
        return str(weights.path), _read(weights.path)
    if weights.fetch is not None:
        try:
            return f"The default of {entry.name}", weights.fetch()
        except Exception as error:  # another library's
            raise WeightsError(f"The default weights of {entry.name} could not be had ({error}).") from error
    if weights.url is None:
        raise WeightsError(
            f"{entry.name} has no default weights, for none are published: set weights to the path of a file, "
            "or to 'none' for untrained weights."
        )
    path = Path(torch.hub.get_dir()) / "checkpoints" / str(weights.file_name)
    if not path.is_file():
        _download(entry, weights, path)
    return str(path), _read(path)


def _check_digest(path: Path, file_name: str) -> None:
    """Files of torch.hub carry the first digits of their SHA-256 in their names: a broken download shows."""
    named = re.search(r"-([0-9a-f]{8,})\.", file_name)
    if named and not hashlib.sha256(path.read_bytes()).hexdigest().startswith(named[1]):
        raise OSError(f"what came has {path.stat().st_size:,} bytes and is not {file_name}")


def _download(entry: ModelEntry, weights: Weights, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    try:
        with urllib.request.urlopen(str(weights.url), timeout=CONNECT_S) as answer, part.open("wb") as file:
            shutil.copyfileobj(answer, file)
        _check_digest(part, str(weights.file_name))
        part.replace(path)
    except (OSError, HTTPException) as error:
        part.unlink(missing_ok=True)
        raise WeightsError(
            f"The default weights of {entry.name} could not be downloaded ({error}): fetch {weights.url} elsewhere and "
            f"place it at {path}, or set weights to the path of a file, or to 'none' for untrained weights."
        ) from error
