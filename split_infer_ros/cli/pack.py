"""Write a model's weights to a file from which they can be streamed, layer by layer, while it runs.

For a CPU the file is for this machine: convolutions lie in it as this processor and this torch want them. For a GPU
all lies plain, and any GPU takes it.
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
    """Run the command; returns its exit code."""
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
    parser.add_argument("--weights", default="default", help="as the parameter of that name: a .safetensors file, say")
    parser.add_argument(
        "--device", type=_kind, default="auto", help="where the backbone will run: auto, cpu, cuda, cuda:1, ..."
    )
    parser.add_argument(
        "--threads",
        type=whole,
        default=torch.get_num_threads(),
        metavar="N",
        help="with which it will run on a CPU; unless given, %(default)s",
    )
    parser.add_argument(
        "--batch-size", type=whole, default=1, metavar="N", help="with which it will run; unless given, %(default)s"
    )
    parser.add_argument(
        "--tile-mb", type=positive, default=TILE_MB, metavar="MB", help="a larger layer is stored in tiles of its rows"
    )
    parser.add_argument("--allow-user-code", action="store_true", help="load a model of yours, which may run any code")
    return parser


def _kind(device: str) -> str:
    """What a file depends on: of a GPU neither on which one nor on whether it is in this machine."""
    with suppress(RuntimeError):
        kind = (choose_device(device) if device == "auto" else torch.device(device)).type
        if kind in ("cpu", "cuda"):
            return kind
    raise argparse.ArgumentTypeError(f"{device} is none of auto, cpu, cuda, cuda:1, ...")


if __name__ == "__main__":
    sys.exit(main())
