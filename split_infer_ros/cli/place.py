"""Plans which operators of a model and of its decode run on a GPU, which on the CPU, and what is copied between them.

An operator runs on the GPU if a list says that it performs well there, else on the CPU. Operators that are not on the
list are named. With --measured, each operator runs where it was measured to be faster, copies included. That needs a
GPU. The measured times are stored in the database.

With --run, the plan is executed on images. With a GPU, it takes turns with the whole model on that GPU, and both are
timed. Without one, both processors are the CPU: the detections are compared, and nothing is timed.
"""

from __future__ import annotations

import itertools
import json
import statistics
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, fx

from split_infer_ros.cli.command import CommandParser, command, model_spec_of, whole
from split_infer_ros.errors import SourceError
from split_infer_ros.images.encodings import ENCODINGS, Pixels
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.turns import median_interval
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.operator_placement.operator_graph import read_operators, with_decode
from split_infer_ros.operator_placement.operator_list import OperatorList
from split_infer_ros.operator_placement.operator_timer import time_operators
from split_infer_ros.operator_placement.operator_times import from_records, rule_from_times, to_records
from split_infer_ros.operator_placement.placed_run import PlacedRun, run_plan
from split_infer_ros.operator_placement.plan import PlacementPlan, Rule, Tag, describe, make_plan
from split_infer_ros.runtime.device import CPU, Device
from split_infer_ros.sources import open_source
from split_infer_ros.split.load import choose_device, load_model
from split_infer_ros.split.torch_network import TorchNetwork, torch_network


def make_parser() -> CommandParser:
    """Returns the parser of the command's arguments."""
    parser = CommandParser.of("place", __doc__)
    parser.add_model()
    parser.add_argument(
        "--operators", type=Path, metavar="FILE", help="adds to the list; its lines have the form: gpu|cpu|any NAME..."
    )
    parser.add_argument("--measured", action="store_true", help="use measured times instead of the list")
    parser.add_database("measured times")
    parser.add_argument(
        "--weights",
        help="like the parameter of this name; the plan does not depend on them; default with --run: random",
    )
    parser.add_argument(
        "--run",
        nargs="?",
        const="shapes",
        metavar="SOURCE",
        help="run the plan on images of this source, like the camera's parameter source; default: shapes",
    )
    parser.add_argument("--images", type=whole, default=8, metavar="N", help="number of images; default: 8")
    parser.add_model_options()
    parser.add_argument("--json", action="store_true", help="print every operator as JSON")
    return parser


@command(make_parser)
def main(chosen: Namespace) -> None:
    """Prints the plan. With ``--run``, runs it and prints what that showed. Returns the exit code."""
    run: PlacedRun | None = None
    rule: Rule = OperatorList.read(chosen.operators)
    weights = chosen.weights or ("random" if chosen.run else "none")
    spec = model_spec_of(chosen, weights=weights, on_torch=True)
    model = load_model(spec)
    network = torch_network(model, "Placing operators", "the command split_points lists where it splits.")
    graph = with_decode(network.graph.module, model.entry)
    operators = read_operators(graph, model.entry.image_shape)
    if chosen.measured:
        database = Database(chosen.database)
        rule = _measured_rule(network, graph, fallback=rule, gpu=choose_device("cuda"), database=database)
    plan = make_plan(operators, rule)
    if chosen.run:
        gpu = choose_device("cuda") if torch.cuda.is_available() else None
        run = run_plan(graph, plan, _inputs(model.entry, chosen.run, chosen.images), gpu=gpu)
    if chosen.json:
        ran = {} if run is None else {"run": asdict(run)}
        print(json.dumps({"model": model.entry.name, **_as_json(plan), **ran}, indent=1))
    else:
        print(f"{model.entry.name}: {model.entry.summary}; bytes are those of one image\n")
        print(describe(plan))
        if run is not None:
            print(f"\n{describe_run(run, chosen.run)}")


def describe_run(run: PlacedRun, source: str) -> str:
    """Returns sentences about a run: whether detections stay equal, and how the time changes if it was measured.

    Args:
        run: the result of the run.
        source: the name of the source of the images.
    """
    ran = f"Ran on {run.images} images of {source}, one by one: {run.detections} detections."
    if run.images_that_differ:
        same = f"{run.images_that_differ} of {run.images} images have other detections than on one device."
    else:
        same = f"Classes equal those on one device; scores differ by at most {run.score_difference:.2g}."
    if run.seconds is None:
        return (
            f"{ran}\n{same}\nBoth processors are this CPU, because there is no GPU. So no time was measured: copies "
            "from the CPU to itself say nothing about what falling back costs."
        )
    placed_s, one_s = run.seconds
    shares = [100 * (placed / one - 1) for placed, one in zip(placed_s, one_s, strict=True)]
    low, high = median_interval(shares)
    return (
        f"{ran}\n{same}\n{1e3 * statistics.median(placed_s):.2f} ms an image as placed, "
        f"{1e3 * statistics.median(one_s):.2f} ms all on the GPU. Falling back changes the time by "
        f"{statistics.median(shares):+.2f} % ({low:+.2f} to {high:+.2f} %, {len(shares)} turns)."
    )


def _inputs(entry: ModelEntry, source: str, count: int) -> list[Tensor]:
    """Returns the first images of a source as inputs of the model, float32 (1, 3, h, w) each.

    Raises:
        SourceError: the source cannot be opened, or has no image.
    """
    pictures = open_source(source)
    try:
        images = [
            Pixels(picture.image, ENCODINGS[picture.encoding].rgb) for picture in itertools.islice(pictures, count)
        ]
    finally:
        pictures.close()
    if not images:
        raise SourceError(f"{source} has no image on which the plan could run.")
    preprocess = entry.preprocess
    gathered = [preprocess.gather([image], preprocess.staging(1)) for image in images]
    return [torch.from_numpy(preprocess.normalise(each)) for each in gathered]


def _measured_rule(
    network: TorchNetwork, graph: fx.GraphModule, *, fallback: Rule, gpu: Device, database: Database
) -> Rule:
    """Returns the rule that follows measured times. It reads them from the database, or measures them now."""
    key = Key.here(str(gpu))
    task = {
        "model": network.entry.name,
        "fingerprint": network.fingerprint,
        "stage": "operators",
        "shapes": [list(network.entry.image_shape)],
        "precision": "float32",
    }
    times = from_records(database.find(key, task))
    if not times:
        images = torch.zeros((1, *network.entry.image_shape)).contiguous(memory_format=torch.channels_last)
        times = time_operators(graph, images, {Tag.GPU: gpu, Tag.CPU: CPU})
        database.keep(to_records(times, key, task), "the times are")
    return rule_from_times(times, fallback=fallback)


def _as_json(plan: PlacementPlan) -> dict[str, object]:
    return {
        "operators": [asdict(each) | {"device": plan.devices[each.name].value} for each in plan.operators],
        "copies": [asdict(copy) | {"target": copy.target.value} for copy in plan.copies],
        "copied_bytes": plan.copied_bytes,
        "unlisted": dict(plan.unlisted),
    }
