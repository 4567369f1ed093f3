"""A model's weights: its default ones, a file of the user's, or none; never by unpickling code."""

from __future__ import annotations

import hashlib
import re
import shutil
import urllib.request
from http.client import HTTPException
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from split_infer_ros.errors import WeightsError
from split_infer_ros.models.entry import ModelEntry, Weights

DEFAULT, NONE = "default", "none"
CONNECT_S = 10.0


def load_weights(model: nn.Module, entry: ModelEntry, weights: str) -> None:
    """Give a freshly built model its weights.

    Args:
        model: as entry.build made it.
        entry: the model's entry.
        weights: ``default`` (shipped, or downloaded once), ``none`` (as built) or the path of a safetensors
            file or of a state dict saved by torch.

    Raises:
        WeightsError: no such file, not readable, or another model's.
    """
    if weights == NONE:
        return
    path = _default_file(entry) if weights == DEFAULT else Path(weights).expanduser()
    state = _read(path)
    expected = model.state_dict()
    missing = [name for name in expected if name not in state and not name.endswith("num_batches_tracked")]
    surplus = [name for name in state if name not in expected]
    unlike = [n for n in expected if n in state and state[n].shape != expected[n].shape]
    if missing or surplus or unlike:
        first = (missing or surplus or unlike)[0]
        raise WeightsError(
            f"{path} holds another model's weights than {entry.name}'s: of {len(expected)} tensors {len(missing)} are "
            f"missing, {len(unlike)} have another shape and {len(surplus)} are surplus (the first: '{first}')."
        )
    model.load_state_dict(state, strict=False)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise WeightsError(f"There is no weights file {path}; weights takes 'default', 'none' or the path of a file.")
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


def _default_file(entry: ModelEntry) -> Path:
    if entry.weights.path is not None:
        return entry.weights.path
    if entry.weights.url is None:
        raise WeightsError(
            f"{entry.name} has no default weights, for none are published: set weights to the path of a file, "
            "or to 'none' for untrained weights."
        )
    path = Path(torch.hub.get_dir()) / "checkpoints" / str(entry.weights.file_name)
    if not path.is_file():
        _download(entry, entry.weights, path)
    return path


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
        _check_digest(part, str(entry.weights.file_name))
        part.replace(path)
    except (OSError, HTTPException) as error:
        part.unlink(missing_ok=True)
        raise WeightsError(
            f"The default weights of {entry.name} could not be downloaded ({error}): fetch {weights.url} elsewhere and "
            f"place it at {path}, or set weights to the path of a file, or to 'none' for untrained weights."
        ) from error
