"""Writes a model's weights to a file from which they can be streamed, layer by layer, while the model runs.

For a CPU, the file fits this machine: convolutions have the layouts that this processor and this torch want. For a
GPU, all layouts are plain, and the file fits any GPU.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path

import torch

from split_infer_ros.cli.model_options import add_model, add_model_options, model_spec_of
from split_infer_ros.cli.numbers import positive, whole
from split_infer_ros.errors import SplitInferError
from split_infer_ros.split.load import choose_device, load_model
from split_infer_ros.split.torch_model import torch_model
from split_infer_ros.weight_streaming.pack import TILE_MB, pack_model


def main() -> int:
    """Runs the command and returns its exit code."""
    arguments = make_parser().parse_args()
    try:
        spec = model_spec_of(arguments, weights=arguments.weights, on_torch=True)
        model = torch_model(load_model(spec), "Packing weights", "its weights are never streamed.")
        header = pack_model(
            model,
            arguments.out,
            num_threads=arguments.num_threads if arguments.device == "cpu" else None,
            batch_size=arguments.batch_size,
            tile_mb=arguments.tile_mb,
        )
    except (SplitInferError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    layers = {piece.layer for piece in header.pieces}
    largest = max(header.pieces, key=lambda piece: piece.nbytes)
    print(
        f"{arguments.out}: {header.model}, {header.weight_bytes / 1e6:.1f} MB in {len(layers)} layers and "
        f"{len(header.pieces)} pieces, the largest {largest.nbytes / 1e6:.1f} MB ({largest.layer}), "
        f"for {header.machine}"
    )
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="pack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_model(parser)
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
    add_model_options(parser)
    return parser


def _device_type(device: str) -> str:
    """Returns ``cpu`` or ``cuda``. A file for a GPU fits any GPU, and this machine need not have one."""
    with suppress(RuntimeError):
        kind = (choose_device(device) if device == "auto" else torch.device(device)).type
        if kind in ("cpu", "cuda"):
            return kind
    raise argparse.ArgumentTypeError(f"{device} is none of auto, cpu, cuda, cuda:1, ...")


if __name__ == "__main__":
    sys.exit(main())
