"""``cuts MODEL``: where a model can be cut, and what would cross there."""

from __future__ import annotations

import argparse
import json
import sys

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.split.cuts import Cut, describe
from split_infer_ros.split.model import load_model


def main() -> int:
    """Print the cuts of the model on the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="cuts", description="Where a model can be cut, and what would cross there.")
    parser.add_argument("model", help="of the catalogue, timm:NAME, package.module:factory or FILE.pt2")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--allow-user-code", action="store_true", help="for models of your own")
    arguments = parser.parse_args()
    try:
        model = load_model(arguments.model, "none", "cpu", arguments.allow_user_code)
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    default = model.cut("default").name
    if arguments.json:
        cuts = [_as_json(cut) for cut in model.cuts]
        print(json.dumps({"model": arguments.model, "default": default, "cuts": cuts}, indent=1))
    else:
        print(f"{model.entry.summary}; cut at {default} by default\n\n{describe(model.cuts)}")
    return 0


def _as_json(cut: Cut) -> dict[str, object]:
    tensors = [
        {"name": spec.name, "shape": list(spec.shape), "dtype": str(spec.dtype).removeprefix("torch.")}
        for spec in cut.tensors
    ]
    return {
        "name": cut.name,
        "aliases": list(cut.aliases),
        "bytes_per_image": cut.bytes_per_image,
        "tensors": tensors,
    }


if __name__ == "__main__":
    sys.exit(main())
