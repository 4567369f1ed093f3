"""Loads models by name. A process loads a model once and shares it, until one of its files changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Union
from weakref import WeakKeyDictionary, WeakValueDictionary

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError, WeightsError
from split_infer_ros.models.decoders.recognition import OutputReading
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.named_weights import NamedWeights
from split_infer_ros.models.onnx_json import parse_reading
from split_infer_ros.models.onnx_models import OnnxFile, is_onnx_file
from split_infer_ros.models.onnx_options import AUTO
from split_infer_ros.models.shapes_file import NAME
from split_infer_ros.models.weights_source import weights_source
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.runtime.device import CPU, Device
from split_infer_ros.split.located_spec import located
from split_infer_ros.split.manifest import Manifest
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_files import FilesState, files_state, named_files
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.network import Network
from split_infer_ros.split.onnx_network import OnnxNetwork, of_onnx
from split_infer_ros.split.onnx_reading import read_file
from split_infer_ros.split.quantised_network import place
from split_infer_ros.split.sandbox.inspection import Inspected, inspect_files
from split_infer_ros.split.torch_needs import AN_ONNX_FILE, num_gpus, require_torch

if TYPE_CHECKING:
    from torch import nn

MakeWeightless = Callable[[ModelSpec], "Network | None"]
"""Makes a spec's network without its weights, which are read when needed; None if the model must be loaded."""

Built = Union["nn.Module", OnnxGraph]
"""What an entry builds: a module in eval mode with its weights, or an ONNX graph."""

AUTO_DEVICE = "auto"
HAS_FILE = "engine onnxruntime and weights default"  # with these, ``shapes`` is loaded from its ONNX file

_networks: WeakValueDictionary[tuple[ModelSpec, FilesState], Network] = WeakValueDictionary()
_loaded: WeakValueDictionary[tuple[ModelSpec, FilesState], SplitModel] = WeakValueDictionary()
_engines: WeakKeyDictionary[Network, set[Engine]] = WeakKeyDictionary()  # engines with inspected files, by network
_beside: dict[tuple[str, FilesState], tuple[Path, ...]] = {}  # inspected files, by model and the state of named files
_loading = threading.Lock()


def load_model(spec: ModelSpec, make_weightless: MakeWeightless | None = None) -> SplitModel:
    """Loads a model. Within a process, equal specs share one model.

    Specs that differ only in the device or the execution config share the weights on the CPU, unless their ``folding``
    differs.

    A user's file is inspected before it is read; see ``inspect_files``. An ONNX file is inspected once for each engine
    that runs it.

    If a file of the model has changed, the model is loaded anew. Callers that use the old model keep it.

    Args:
        spec: names the model and says how to run it.
        make_weightless: is tried first if the model was not loaded before; see ``MakeWeightless``.

    Raises:
        ConfigurationError: the model or device is unknown, the model cannot be split or run in this way, or the weights
            do not fit.
    """
    device = CPU if spec.device == AUTO_DEVICE else choose_device(spec.device)  # auto depends on the model
    spec = located(spec)
    # The permission is part of the key: who may not load user code may not share the network either.
    network_spec = replace(spec, device="cpu", execution_config=ExecutionConfig(folding=spec.execution_config.folding))
    with _loading:
        named = files_state(named_files(spec))  # before they are read: they may change meanwhile
        model = spec.name, named
        state = named + files_state(_beside.get(model, ()))
        network = _networks.get((network_spec, state))
        if network is None:
            network = make_weightless(network_spec) if make_weightless is not None else None
            if network is None:
                found = _inspect(spec)
                _beside[model] = tuple(found.digests)
                state = named + files_state(found.digests)
                network = _load_network(spec, found)
                _engines[network] = {_engine_of(spec)}
            _networks[network_spec, state] = network
        engines = _engines.setdefault(network, set())
        if isinstance(network, OnnxNetwork) and _engine_of(spec) not in engines:
            _inspect(spec)
            engines.add(_engine_of(spec))
        if spec.device == AUTO_DEVICE:
            device = network.best_device()
        placed_spec = replace(spec, device=str(device))
        placed = _loaded.get((placed_spec, state))
        if placed is None:
            placed = place(network, device, spec.execution_config)
            _loaded[placed_spec, state] = placed
        return placed


def _inspect(spec: ModelSpec) -> Inspected:
    """Inspects the files of a model for the engine that will run them."""
    return inspect_files(replace(spec, execution_config=ExecutionConfig(engine=_engine_of(spec))))


def _engine_of(spec: ModelSpec) -> Engine:
    """Returns the engine that runs a model's files. Another engine runs models of torch after an export."""
    if spec.on_torch or not is_onnx_file(spec.name):
        return Engine.TORCH
    return of_onnx(spec.execution_config).engine


def _load_network(spec: ModelSpec, found: Inspected) -> Network:
    """Makes the network that all placements share. Its files were inspected."""
    origin = weights_source(spec.name, spec.weights)  # before the weights are read: a file may change
    manifest = Manifest.of(found.identity, spec.name) if is_onnx_file(spec.name) else Manifest()
    built = build_uninspected(spec, _reader_of(found), manifest, found.digests)
    network = make_network(*built, folding=spec.execution_config.folding, manifest=manifest)
    network.weights_source = origin
    return network


def build_model(spec: ModelSpec) -> tuple[ModelEntry, Built]:
    """Builds the unsplit module on the CPU, with its weights, in eval mode; or reads the ONNX graph.

    A user's files are inspected first. The device and the execution config of the spec are not used.

    Returns:
        The model's ``ModelEntry``, and the module or graph.

    Raises:
        ConfigurationError: the model is unknown, the weights do not fit, or an ONNX model cannot be converted to torch.
    """
    spec = located(spec)
    return build_uninspected(spec, _reader_of(_inspect(spec)))


def _reader_of(found: Inspected) -> Callable[[OnnxFile], OutputReading]:
    """Returns the function that reads outputs as the inspection found out."""
    return lambda file: parse_reading(file.graph, found.reading)


def onnx_entry(
    path: str, *, decoder: str = AUTO, labels: str = "", input_size: str = "", preprocessing: str = AUTO
) -> ModelEntry:
    """Returns the ``ModelEntry`` of an ONNX file, for a factory of your own (``package.module:factory``).

    The factory may change the entry with ``dataclasses.replace``, and returns it. The entry's ``decode`` takes tensors.
    A function that replaces ``decode`` gets tensors too. The file is inspected once, before it is read.

    Args:
        path: the path of ``FILE.onnx``.
        decoder, labels, input_size, preprocessing: what the file does not say. They take the same values as the
            parameters of these names.

    Raises:
        ConfigurationError: the file cannot be used.
    """
    spec = ModelSpec(
        path, decoder=decoder, labels=labels, input_size=input_size, preprocessing=preprocessing, device="cpu"
    )
    return replace(build_model(spec)[0], decodes_arrays=False)


def build_uninspected(
    spec: ModelSpec,
    read_outputs: Callable[[OnnxFile], OutputReading],
    manifest: Manifest | None = None,
    digests: Mapping[Path, str] | None = None,
) -> tuple[ModelEntry, Built]:
    """Does the same as ``build_model``, but does not inspect the files first. A damaged file can end this process.

    Args:
        spec: names the model and says how to run it.
        read_outputs: finds out how the outputs of an ONNX file are read.
        manifest: the known facts about an ONNX file. With these, the file is read only when its nodes are needed. None
            if nothing is known.
        digests: the digests of the files that hold an ONNX model, from their inspection. A file with other content is
            refused. None refuses no file.

    Raises:
        ConfigurationError: the model is unknown, the weights do not fit, or an ONNX model cannot be converted to torch.
    """
    built: Built
    if is_onnx_file(spec.name):
        entry, built = read_file(spec, read_outputs, manifest or Manifest(), digests or {})
    else:
        require_torch(spec.name, instead=HAS_FILE if spec.name == NAME else AN_ONNX_FILE)
        from split_infer_ros.split.torch_loading import build_with_torch  # only here: it imports torch

        entry, built = build_with_torch(spec)
    if not isinstance(built, OnnxGraph):
        return entry, built
    if spec.weights not in {named.value for named in NamedWeights}:  # random too: some commands only measure times
        raise WeightsError(
            f"weights '{spec.weights}' cannot go into {entry.name}: an ONNX file has its own; take default."
        )
    if not spec.on_torch:
        return entry, built
    require_torch(f"{entry.name} on engine torch", instead=AN_ONNX_FILE)
    from split_infer_ros.split.onnx_to_torch import to_torch  # only here: it imports torch

    return to_torch(entry, built)


def make_network(entry: ModelEntry, built: Built, *, folding: bool = True, manifest: Manifest | None = None) -> Network:
    """Makes a network of the module or graph that a model's entry built.

    Args:
        entry: the model's ``ModelEntry``.
        built: the module or graph. The network may change a module.
        folding: whether a model of torch folds batch norms into convolutions. It changes nothing for an ONNX graph.
        manifest: the known facts about an ONNX file; None if nothing is known.

    Raises:
        ConfigurationError: the model cannot be traced, or does not run.
    """
    if isinstance(built, OnnxGraph):
        return OnnxNetwork(entry, built, manifest=manifest)
    from split_infer_ros.split.torch_loading import make_torch_network  # only here: it imports torch

    return make_torch_network(entry, built, folding=folding)


def choose_device(name: str) -> Device:
    """Returns the device that a user names. A GPU gets its index.

    A name is ``cpu``, ``cuda:INDEX``, ``cuda`` or ``auto``. ``cuda`` is the first GPU. ``auto`` is the first GPU if
    there is one, else the CPU.

    Raises:
        ConfigurationError: this machine has no such device.
    """
    if name == CPU:
        return CPU
    count = num_gpus()
    accepted = [AUTO_DEVICE, CPU, *(["cuda"] if count else []), *(f"cuda:{index}" for index in range(count))]
    if name not in accepted:
        raise ConfigurationError(f"device '{name}' is not on this machine; it takes one of: {', '.join(accepted)}.")
    if name == AUTO_DEVICE:
        name = "cuda" if count else CPU
    return Device("cuda:0" if name == "cuda" else name)
