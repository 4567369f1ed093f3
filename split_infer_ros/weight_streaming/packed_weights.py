"""Finds the file of a model's packed weights, creates it if it is missing, and reads weights back from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from weakref import WeakKeyDictionary

from torch import Tensor, fx

from split_infer_ros.engines.engine import Engine, engine_text
from split_infer_ros.errors import ConfigurationError, StreamError, WeightsError
from split_infer_ros.runtime.cache import hold
from split_infer_ros.runtime.cache_pruning import prune_cache
from split_infer_ros.runtime.user_files import user_path
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork, torch_network
from split_infer_ros.torch_graphs.module_state import state_of
from split_infer_ros.weight_streaming.pack import pack_model, weights_digest
from split_infer_ros.weight_streaming.packed_header import PackedHeader, packed_folder
from split_infer_ros.weight_streaming.packed_partition import open_packed
from split_infer_ros.weight_streaming.unpack import unpack_weights

_digests: WeakKeyDictionary[fx.GraphModule, str] = WeakKeyDictionary()  # by graph


def streamable(model: SplitModel) -> TorchNetwork:
    """Returns the network of a torch model, so that its weights can be streamed.

    Raises:
        ConfigurationError: the weights cannot be streamed, because the model is no torch model or runs on another
            engine than torch.
    """
    streamed = torch_network(
        model,
        "Streaming weights",
        "take engine torch for an ONNX file, or leave weights_residency at resident and weights_budget_mb at 0.",
    )
    config = model.execution_config
    if config.engine is not Engine.TORCH:
        raise ConfigurationError(
            f"weights_residency can only be resident on engine {engine_text(config.engine, config.provider)}, on which "
            f"{model.entry.name} runs: streaming weights needs engine torch."
        )
    return streamed


def read_from_file(network: TorchNetwork, path: Path, header: PackedHeader, *, num_threads: int | None) -> None:
    """Connects a network without weights to a packed file.

    When a partition needs weights in memory, the network reads them from the file.

    Args:
        network: the network. The file holds its weights.
        path: the packed file.
        header: the file's header.
        num_threads: number of CPU threads for which the weights were packed; None for a GPU.
    """
    hold(path)
    _digests[network.graph.module] = header.values
    network.weights_source = header.source
    network.graph.release(
        state_of(network.graph.module).keys(),
        lambda names: fetch_weights(network, path, num_threads=num_threads, names=names),
    )


def find_packed(network: TorchNetwork, weights_file: str, *, num_threads: int | None, batch_size: int) -> Path:
    """Returns the path of a model's packed weights: the user's file, or one in the cache folder.

    The file in the cache folder is created if it is missing, or if it is for other weights or another machine.

    Args:
        network: the network that has the weights.
        weights_file: path of the user's file; empty if there is none.
        num_threads: number of CPU threads that will run the partition; None for a GPU.
        batch_size: the partition's batch size. Weights are laid out for it.

    Raises:
        ConfigurationError: the file cannot be read or created, or is damaged; or it is for another model or machine,
            or has other weights.
    """
    try:
        return _find(network, weights_file, num_threads, batch_size)
    except OSError as error:
        raise ConfigurationError(f"Weights cannot be streamed: {error}") from error


def _find(network: TorchNetwork, weights_file: str, num_threads: int | None, batch_size: int) -> Path:
    if network.graph.module not in _digests:  # now, because weights may be released later
        _digests[network.graph.module] = weights_digest(network.graph.state())
    digest = _digests[network.graph.module]
    if weights_file:
        path = user_path(weights_file)
        if open_packed(network, network.graph.module, path, num_threads=num_threads).header.values != digest:
            raise WeightsError(
                f"weights_file {path} holds other weights than those that were loaded: pack the loaded ones."
            )
        return path
    # Layouts depend on threads and batch size. In a file for others, some weights would be converted at every call.
    kind = f"{num_threads}-{batch_size}" if num_threads else "gpu"
    path = packed_folder() / f"{network.fingerprint}-{digest}-{kind}.weights"
    hold(path)
    try:
        fits = open_packed(network, network.graph.module, path, num_threads=num_threads).header.values == digest
    except WeightsError:  # there is no file yet, or another version of torch made it
        fits = False
    if not fits:
        pack_model(network, path, num_threads=num_threads, batch_size=batch_size)
        hold(path)
        prune_cache()
    return path


def fetch_weights(
    network: TorchNetwork, path: Path, *, num_threads: int | None, names: Collection[str]
) -> Mapping[str, Tensor]:
    """Reads weights that were released from memory back from a packed file. Returns them by name.

    Args:
        network: the network. The file holds its weights.
        path: the packed file.
        num_threads: number of CPU threads for which the weights were packed; None for a GPU.
        names: names of the wanted tensors in the network's state.

    Raises:
        WeightsError: the weights cannot be read.
    """
    try:
        return unpack_weights(network, path, num_threads=num_threads, names=names)
    except (OSError, StreamError, WeightsError) as error:
        raise WeightsError(
            f"{error} The released weights of {network.entry.name} cannot be read back: remove that file, or pack it "
            "again, and restart the node."
        ) from error
