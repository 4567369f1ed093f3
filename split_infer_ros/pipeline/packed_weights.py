"""The files of packed weights: where they are found, made where there is none, and read back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from weakref import WeakKeyDictionary

from torch import Tensor, fx

from split_infer_ros.errors import ConfigurationError, StreamError, WeightsError
from split_infer_ros.measurements.database import default_path
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.pack import digest, pack_model
from split_infer_ros.weight_streaming.partition_weights import open_contents
from split_infer_ros.weight_streaming.unpack import unpack

_values: WeakKeyDictionary[fx.GraphModule, str] = WeakKeyDictionary()  # digests, by what placed models share


def find_packed(model: SplitModel, own: str, threads: int | None, batch_size: int) -> Path:
    """The file of a model's weights: the user's, or one in the cache folder, made where there is none.

    Args:
        model: whose weights they are.
        own: path of the user's file; empty: there is none.
        threads: with which the partition will run; None for a GPU.
        batch_size: of the partition, for which weights are laid out.

    Raises:
        ConfigurationError: it cannot be read or made, is damaged, or another model's, machine's or weights'.
    """
    try:
        return _find(model, own, threads, batch_size)
    except OSError as error:
        raise ConfigurationError(f"Weights cannot be streamed: {error}") from error


def _find(model: SplitModel, own: str, threads: int | None, batch_size: int) -> Path:
    if model.graph not in _values:  # later they may have been given back
        _values[model.graph] = digest(model.state())
    values = _values[model.graph]
    if own:
        path = Path(own).expanduser()
        if open_contents(model, model.graph, path, threads).header.values != values:
            raise WeightsError(f"weights_file {path} holds other weights than were loaded: pack those.")
        return path
    # as layouts go: another number of cores or images wants others, and would have some converted at every call
    kind = f"{threads}-{batch_size}" if threads else "gpu"
    path = default_path().parent / "weights" / f"{model.fingerprint}-{values}-{kind}.weights"
    try:
        sound = open_contents(model, model.graph, path, threads).header.values == values
    except WeightsError:  # none yet, or of another torch
        sound = False
    if not sound:
        pack_model(model, path, threads, batch_size)
    return path


def fetch(model: SplitModel, path: Path, threads: int | None, wanted: Collection[str]) -> Mapping[str, Tensor]:
    """Weights that were given back, by name, out of their file.

    Raises:
        WeightsError: they cannot be had.
    """
    try:
        return unpack(model, path, threads, wanted)
    except (OSError, StreamError, WeightsError) as error:
        raise WeightsError(
            f"{error} So the weights of {model.entry.name} that were given back cannot be had again: remove that file, "
            "or pack it again, and start the node anew."
        ) from error
