"""Writes a model's weights to a file from which they can be streamed, layer by layer, while the model runs.

A file for a CPU works on this machine only, because convolutions are stored in the layout of this processor and this
torch. A file for a GPU holds plain weights and works with any GPU.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path

import torch

from split_infer_ros.cli.numbers import positive, whole
from split_infer_ros.errors import SplitInferError
from split_infer_ros.split.load import choose_device, load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.weight_streaming.pack import TILE_MB, pack_model


def main() -> int:
    """Runs the command and returns its exit code."""
    chosen = _arguments().parse_args()
    try:
        model = load_model(
            ModelSpec(chosen.model, weights=chosen.weights, device="cpu", allow_user_code=chosen.allow_user_code)
        )
        threads = chosen.threads if chosen.device == "cpu" else None
        header = pack_model(model, chosen.out, threads, chosen.batch_size, chosen.tile_mb)
    except (SplitInferError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    layers = {piece.layer for piece in header.pieces}
    largest = max(header.pieces, key=lambda piece: piece.nbytes)
    print(
        f"{chosen.out}: {header.model}, {header.weight_bytes / 1e6:.1f} MB in {len(layers)} layers and "
        f"{len(header.pieces)} pieces, the largest {largest.nbytes / 1e6:.1f} MB ({largest.layer}), "
        f"for {header.machine}"
    )
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="of the catalogue, timm:NAME, package.module:factory or FILE.pt2")
    parser.add_argument("--out", type=Path, metavar="FILE", required=True, help="where to write")
    parser.add_argument(
        "--weights",
        default="default",
        help="as the parameter weights, for example a .safetensors file; default: %(default)s",
    )
    parser.add_argument(
        "--device", type=_device_type, default="auto", help="where the backbone will run: auto, cpu, cuda, cuda:1, ..."
    )
    parser.add_argument(
        "--threads",
        type=whole,
        default=torch.get_num_threads(),
        metavar="N",
        help="threads with which it will run on a CPU; default: %(default)s",
    )
    parser.add_argument(
        "--batch-size",
        type=whole,
        default=1,
        metavar="N",
        help="batch size with which it will run; default: %(default)s",
    )
    parser.add_argument(
        "--tile-mb", type=positive, default=TILE_MB, metavar="MB", help="a larger layer is stored in tiles of its rows"
    )
    parser.add_argument("--allow-user-code", action="store_true", help="load a model of yours, which may run any code")
    return parser


def _device_type(device: str) -> str:
    """Returns ``cpu`` or ``cuda``, on which a file depends. The GPU need not be in this machine."""
    with suppress(RuntimeError):
        device_type = (choose_device(device) if device == "auto" else torch.device(device)).type
        if device_type in ("cpu", "cuda"):
            return device_type
    raise argparse.ArgumentTypeError(f"{device} is none of auto, cpu, cuda, cuda:1, ...")


if __name__ == "__main__":
    sys.exit(main())
