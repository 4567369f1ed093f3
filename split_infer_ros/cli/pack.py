"""Writes a model's weights to a file from which they can be streamed, layer by layer, while the model runs.

For a CPU, the file fits this machine: convolutions have the layouts that this processor and this torch want. For a
GPU, all layouts are plain, and the file fits any GPU.
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from contextlib import suppress
from pathlib import Path

import torch

from split_infer_ros.cli.command import CommandParser, command, model_spec_of, positive, whole
from split_infer_ros.errors import SplitInferError
from split_infer_ros.split.load import choose_device, load_model
from split_infer_ros.split.torch_network import torch_network
from split_infer_ros.weight_streaming.pack import TILE_MB, pack_model


def make_parser() -> CommandParser:
    """Returns the parser of the command's arguments."""
    parser = CommandParser.of("pack", __doc__)
    parser.add_model()
    parser.add_argument("--out", type=Path, metavar="FILE", required=True, help="the file to write")
    parser.add_argument(
        "--weights",
        default="default",
        help="weights to load, like the parameter of this name, such as a .safetensors file",
    )
    parser.add_argument(
        "--device",
        type=_device_type,
        default="auto",
        help="where the model will run: auto, cpu, cuda, cuda:1, ... (default: %(default)s)",
    )
    parser.add_argument(
        "--threads",
        dest="num_threads",
        type=whole,
        default=torch.get_num_threads(),
        metavar="N",
        help="number of cores with which the model will run on a CPU (default: all)",
    )
    parser.add_argument(
        "--batch-size",
        type=whole,
        default=1,
        metavar="N",
        help="batch size with which the model will run (default: %(default)s)",
    )
    parser.add_argument(
        "--tile-mb",
        type=positive,
        default=TILE_MB,
        metavar="MB",
        help="a layer above this size is stored in tiles of its rows (default: %(default)s)",
    )
    parser.add_model_options()
    return parser


@command(make_parser, errors=(SplitInferError, OSError))
def main(chosen: Namespace) -> None:
    """Writes the file of weights, and prints what is in it. Returns the exit code."""
    spec = model_spec_of(chosen, weights=chosen.weights, on_torch=True)
    network = torch_network(load_model(spec), "Packing weights", "its weights are never streamed.")
    header = pack_model(
        network,
        chosen.out,
        num_threads=chosen.num_threads if chosen.device == "cpu" else None,
        batch_size=chosen.batch_size,
        tile_mb=chosen.tile_mb,
    )
    layers = {piece.layer for piece in header.pieces}
    largest = max(header.pieces, key=lambda piece: piece.nbytes)
    print(
        f"{chosen.out}: {header.model}, {header.weight_bytes / 1e6:.1f} MB in {len(layers)} layers and "
        f"{len(header.pieces)} pieces, the largest {largest.nbytes / 1e6:.1f} MB ({largest.layer}), "
        f"for {header.machine}"
    )


def _device_type(device: str) -> str:
    """Returns ``cpu`` or ``cuda`` for a name of a device. A GPU need not be on this machine: the file fits any."""
    with suppress(RuntimeError):
        kind = (choose_device(device) if device == "auto" else torch.device(device)).type
        if kind in ("cpu", "cuda"):
            return kind
    raise ArgumentTypeError(f"{device} is none of auto, cpu, cuda, cuda:1, ...")
