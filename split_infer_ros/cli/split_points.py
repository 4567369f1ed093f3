"""List the cuts of a model in order: what each is called and which tensors cross there, with their bytes an image."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from split_infer_ros.errors import SplitInferError
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import PRECISIONS
from split_infer_ros.split.split_points import Cut, describe


def main() -> int:
    """Run the command; returns its exit code."""
    chosen = _arguments().parse_args()
    try:
        model = load_model(
            chosen.model, chosen.weights, "cpu", chosen.precision, allow_user_code=chosen.allow_user_code
        )
        default = model.cut("default")
    except SplitInferError as error:
        print(error, file=sys.stderr)
        return 1
    if chosen.json:
        cuts = [_as_json(cut) for cut in model.cuts]
        print(json.dumps({"model": model.entry.name, "default": default.name, "cuts": cuts}, indent=1))
    else:
        print(f"{model.entry.name}: {model.entry.summary}; * is the default cut\n")
        print(describe(model.cuts, default))
    return 0


def _as_json(cut: Cut) -> dict[str, object]:
    tensors = [asdict(spec) | {"dtype": str(spec.dtype).removeprefix("torch.")} for spec in cut.tensors]
    return {"name": cut.name, "aliases": cut.aliases, "bytes_per_image": cut.bytes_per_image, "tensors": tensors}


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cuts", description=__doc__)
    parser.add_argument("model", help="of the catalogue, timm:NAME, package.module:factory or FILE.pt2")
    parser.add_argument("--weights", default="none", help="as the parameter of that name; cuts do not depend on them")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="in which the features cross")
    parser.add_argument("--allow-user-code", action="store_true", help="load a model of yours, which may run any code")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
