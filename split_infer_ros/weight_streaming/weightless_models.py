"""Makes networks without weights in memory. A packed file holds the weights."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

from split_infer_ros.errors import WeightsError
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.weights_source import weights_source
from split_infer_ros.runtime.num_threads import tell_torch
from split_infer_ros.runtime.user_files import user_path
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.torch_network import TorchNetwork
from split_infer_ros.split.weightless_network import weightless_network
from split_infer_ros.weight_streaming.pack import packing_target
from split_infer_ros.weight_streaming.packed_file import read_header
from split_infer_ros.weight_streaming.packed_header import PackedHeader, packed_folder
from split_infer_ros.weight_streaming.packed_weights import read_from_file

_log = logging.getLogger(__name__)


def make_weightless(weights_file: str, spec: ModelSpec) -> TorchNetwork | None:
    """Returns a model's network without weights in memory. It reads them from a packed file when it needs them.

    Returns None if no packed file fits, or if the model cannot be built without weights.

    Args:
        weights_file: the path of the user's packed file. Empty: the files in the cache folder are searched.
        spec: says which model, with which weights.
    """
    tell_torch()  # this thread may be the first that imports torch
    source = weights_source(spec.name, spec.weights)
    packed = list(_files_of(source, weights_file)) if source else []
    if not packed:
        return None
    try:
        network = weightless_network(find_model(spec.name), folding=spec.execution_config.folding)
    except Exception as error:  # models of other libraries may compute with weights while they are built
        _log.info("%s is loaded with its weights, because it cannot be built without: %s", spec.name, error)
        return None
    for path, header, num_threads in packed:
        if header.fingerprint == network.fingerprint:
            read_from_file(network, path, header, num_threads=num_threads)
            _log.info("%s starts without its weights in memory, because %s has them.", spec.name, path)
            return network
    return None


def _files_of(source: str, weights_file: str) -> Iterator[tuple[Path, PackedHeader, int | None]]:
    """Yields path, header and number of threads of each file that was packed from this source for this machine."""
    paths = [user_path(weights_file)] if weights_file else sorted(packed_folder().glob("*.weights"))
    for path in paths:
        try:
            header = read_header(path)
        except WeightsError:  # damaged, or of another version
            continue
        found = re.search(r"(\d+) threads$", header.machine)
        num_threads = int(found[1]) if found else None
        if header.source == source and header.machine == packing_target(num_threads):
            yield path, header, num_threads
