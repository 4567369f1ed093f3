"""Lists the split points of a model in order, with the tensors that cross at each and their bytes an image."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from split_infer_ros.cli.model_options import add_model, add_model_options, model_spec_of, weights_of
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import SplitInferError
from split_infer_ros.models.named_weights import NamedWeights
from split_infer_ros.split.load import load_model
from split_infer_ros.split.split_points import SplitPoint, describe


def main() -> int:
    """Runs the command and returns its exit code."""
    chosen = make_parser().parse_args()
    try:
        config = ExecutionConfig(precision=Precision(chosen.precision))
        model = load_model(
            model_spec_of(chosen, weights=weights_of(chosen, NamedWeights.NONE), execution_config=config)
        )
        default = model.split_point("default")
    except SplitInferError as error:
        print(error, file=sys.stderr)
        return 1
    if chosen.json:
        split_points = [_as_json(point) for point in model.split_points]
        print(json.dumps({"model": model.entry.name, "default": default.name, "split_points": split_points}, indent=1))
    else:
        print(f"{model.entry.name}: {model.entry.summary}; * is the default split point\n")
        print(describe(model.split_points, default))
    return 0


def _as_json(split_point: SplitPoint) -> dict[str, object]:
    tensors = [asdict(spec) | {"dtype": spec.dtype.name} for spec in split_point.tensors]
    return {
        "name": split_point.name,
        "aliases": split_point.aliases,
        "bytes_per_image": split_point.bytes_per_image,
        "tensors": tensors,
    }


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="split_points", description=__doc__)
    add_model(parser)
    parser.add_argument("--weights", help="like the parameter of this name; split points do not depend on them")
    parser.add_argument(
        "--precision", choices=[each.value for each in Precision], default="fp32", help="of the backbone; default: fp32"
    )
    add_model_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
