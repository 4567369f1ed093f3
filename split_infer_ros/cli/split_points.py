"""Lists the split points of a model in order, with the tensors that cross at each and their bytes an image."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import asdict

from split_infer_ros.cli.command import CommandParser, command, model_spec_of, weights_of
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.models.named_weights import NamedWeights
from split_infer_ros.split.load import load_model
from split_infer_ros.split.split_points import SplitPoint, describe


def make_parser() -> CommandParser:
    """Returns the parser of the command's arguments."""
    parser = CommandParser.of("split_points", __doc__)
    parser.add_model()
    parser.add_argument("--weights", help="like the parameter of this name; split points do not depend on them")
    parser.add_precision()
    parser.add_model_options()
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


@command(make_parser)
def main(chosen: Namespace) -> None:
    """Prints the split points, as a table or as JSON. Returns the exit code."""
    config = ExecutionConfig(precision=Precision(chosen.precision))
    model = load_model(model_spec_of(chosen, weights=weights_of(chosen, NamedWeights.NONE), execution_config=config))
    default = model.split_point("default")
    if chosen.json:
        split_points = [_as_json(point) for point in model.split_points]
        print(json.dumps({"model": model.entry.name, "default": default.name, "split_points": split_points}, indent=1))
    else:
        print(f"{model.entry.name}: {model.entry.summary}; * is the default split point\n")
        print(describe(model.split_points, default))


def _as_json(split_point: SplitPoint) -> dict[str, object]:
    tensors = [asdict(spec) | {"dtype": spec.dtype.name} for spec in split_point.tensors]
    return {
        "name": split_point.name,
        "aliases": split_point.aliases,
        "bytes_per_image": split_point.bytes_per_image,
        "tensors": tensors,
    }
