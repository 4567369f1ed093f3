"""Plans which operators of a model and of its decode run on a GPU, which on the CPU, and what is copied between them.

An operator runs on the GPU if a list says that it performs well there, else on the CPU. Operators that are not on the
list are named. With --measured, each operator runs where it was measured to be faster, copies included. That needs a
GPU. The measured times are stored in the database.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from torch import fx

from split_infer_ros.errors import SplitInferError
from split_infer_ros.measurements.database import Database, default_path
from split_infer_ros.measurements.key import Key
from split_infer_ros.operator_placement.operator_graph import read_operators, with_decode
from split_infer_ros.operator_placement.operator_list import OperatorList
from split_infer_ros.operator_placement.operator_times import from_records, rule_from_times, time_operators, to_records
from split_infer_ros.operator_placement.plan import PlacementPlan, Rule, Tag, describe, make_plan
from split_infer_ros.split.load import choose_device, load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.torch_model import TorchModel, torch_model


def main() -> int:
    """Runs the command and returns its exit code."""
    chosen = _arguments().parse_args()
    try:
        rule: Rule = OperatorList.read(chosen.operators)
        spec = ModelSpec(chosen.model, weights=chosen.weights, device="cpu", allow_user_code=chosen.allow_user_code)
        model = torch_model(load_model(spec), "Placing operators", "the command split_points lists where it splits.")
        graph = with_decode(model.graph, model.entry)
        operators = read_operators(graph, model.entry.image_shape)
        if chosen.measured:
            rule = _measured_rule(
                model, graph, fallback=rule, gpu=choose_device("cuda"), database=Database(chosen.database)
            )
    except SplitInferError as error:
        print(error, file=sys.stderr)
        return 1
    plan = make_plan(operators, rule)
    if chosen.json:
        print(json.dumps({"model": model.entry.name, **_as_json(plan)}, indent=1))
    else:
        print(f"{model.entry.name}: {model.entry.summary}; bytes are those of one image\n")
        print(describe(plan))
    return 0


def _measured_rule(
    model: TorchModel, graph: fx.GraphModule, *, fallback: Rule, gpu: torch.device, database: Database
) -> Rule:
    """Returns the rule of measured times. They are read from the database, or else measured now."""
    key = Key.here(str(gpu))
    task = {
        "model": model.entry.name,
        "fingerprint": model.fingerprint,
        "stage": "operators",
        "shapes": [list(model.entry.image_shape)],
        "precision": "float32",
    }
    times = from_records(database.find(key, task))
    if not times:
        images = torch.zeros((1, *model.entry.image_shape)).contiguous(memory_format=torch.channels_last)
        times = time_operators(graph, images, {Tag.GPU: gpu, Tag.CPU: torch.device("cpu")})
        database.keep(to_records(times, key, task), "the times are")
    return rule_from_times(times, fallback=fallback)


def _as_json(plan: PlacementPlan) -> dict[str, object]:
    return {
        "operators": [asdict(each) | {"device": plan.devices[each.name].value} for each in plan.operators],
        "copies": [asdict(copy) | {"target": copy.target.value} for copy in plan.copies],
        "copied_bytes": plan.copied_bytes,
        "unlisted": dict(plan.unlisted),
    }


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="place", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="of the catalogue, timm:NAME, package.module:factory or FILE.pt2")
    parser.add_argument(
        "--operators", type=Path, metavar="FILE", help="adds to the list; its lines are: gpu|cpu|any NAME..."
    )
    parser.add_argument("--measured", action="store_true", help="use measured times instead of the list")
    parser.add_argument("--database", type=Path, metavar="FILE", help=f"of measured times; default: {default_path()}")
    parser.add_argument(
        "--weights", default="none", help="as the parameter of that name; the list does not depend on them"
    )
    parser.add_argument("--allow-user-code", action="store_true", help="load a model of yours, which may run any code")
    parser.add_argument("--json", action="store_true", help="print every operator as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
