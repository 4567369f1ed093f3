"""Reads Darknet's own files of weights, such as yolov4.weights: a header, then float32 numbers, layer after layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, fx, nn

from split_infer_ros.errors import WeightsError

SUFFIX = ".weights"
OLD_HEADER_BYTES, HEADER_BYTES = 16, 20  # three numbers of the version, then the count of images seen in training
BIG_COUNT_VERSION = 2  # from version 0.2 on, the count of images has 8 bytes instead of 4
MAX_VERSION = 1000  # for either number; Darknet reads greater ones as an older way to mark a file


def read_darknet_weights(model: nn.Module, path: Path) -> dict[str, Tensor]:
    """Reads Darknet's file of a network's weights into a state dict.

    The file has the layers in the order in which they run. A convolution with a batch norm has the norm's bias, weight,
    mean and variance, and then its own weights. Any other convolution has its bias, and then its weights.

    Args:
        model: the network. Its only layers with weights are convolutions, and batch norms directly behind a
            convolution.
        path: the path of the file.

    Returns:
        The tensors, float32 on the CPU, by their names in the network's state dict.

    Raises:
        WeightsError: the file does not have as many bytes as this network needs.
        OSError: the file cannot be read.
    """
    state = model.state_dict()
    layout = [(name, state[name].shape) for name in _names(model)]
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    offset = _header_bytes(header)
    expected, size = offset + 4 * sum(math.prod(shape) for _, shape in layout), path.stat().st_size
    if size != expected:
        raise WeightsError(
            f"{path} has {size:,} bytes; Darknet's file of this network has {expected:,}. Packed weights of this "
            "package belong to the parameter weights_file."
        )
    numbers = torch.from_numpy(np.fromfile(path, np.dtype("<f4"), offset=offset).astype(np.float32, copy=False))
    parts = torch.split(numbers, [math.prod(shape) for _, shape in layout])
    return {name: part.view(shape) for (name, shape), part in zip(layout, parts, strict=True)}


def _header_bytes(header: bytes) -> int:
    """Returns the length of a file's header in bytes. It follows from the version at the beginning of the header."""
    major, minor = np.frombuffer(header[:8].ljust(8, b"\0"), "<i4").tolist()
    is_new = 10 * major + minor >= BIG_COUNT_VERSION and max(major, minor) < MAX_VERSION
    return HEADER_BYTES if is_new else OLD_HEADER_BYTES


def _names(model: nn.Module) -> Iterator[str]:
    """Yields the names of a network's tensors in the order of the file."""
    modules = dict(model.named_modules())
    for node in fx.symbolic_trace(model).graph.nodes:
        if node.op != "call_module" or not isinstance(modules[node.target], nn.Conv2d):
            continue
        norms = [user.target for user in node.users if isinstance(modules.get(user.target), nn.BatchNorm2d)]
        for norm in norms:
            yield from (f"{norm}.{name}" for name in ("bias", "weight", "running_mean", "running_var"))
        if not norms:
            yield f"{node.target}.bias"
        yield f"{node.target}.weight"
