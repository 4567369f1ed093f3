"""Measures every split point of a model on this machine, and says which one is best.

Prints the milliseconds a batch of each stage alone, the images a second of a saturated pipeline, and the latency of a
batch. A star marks throughputs that were measured; the others are predicted. What was measured before is read from the
database. A tuned model is measured as nodes run it.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from split_infer_ros.autotuning.opening import open_model
from split_infer_ros.cli.model_options import add_model, add_model_options, model_spec_of, weights_of
from split_infer_ros.cli.numbers import whole
from split_infer_ros.engines.engine import AUTO
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import SplitInferError
from split_infer_ros.measurements.database import Database, default_path
from split_infer_ros.models.named_weights import NamedWeights
from split_infer_ros.runtime.process import prepare_process
from split_infer_ros.server.profiling.stored_profile import profile_model
from split_infer_ros.split.planner import Objective, plan
from split_infer_ros.split.profile import describe
from split_infer_ros.weight_streaming.settings import WeightsSettings


def main() -> int:
    """Runs the command and returns its exit code."""
    chosen = make_parser().parse_args()
    prepare_process()
    try:
        spec = model_spec_of(chosen, weights=weights_of(chosen, NamedWeights.RANDOM), device=chosen.device)
        database = Database(chosen.database)
        opened = open_model(spec, WeightsSettings(), database, engine=AUTO, precision=chosen.precision)  # as nodes do
        model = opened.model
        profile = profile_model(model, chosen.batch, database, remeasure=chosen.anew, say=_say)
        choice = plan(profile, Objective(chosen.objective), chosen.latency_bound_ms / 1e3)
    except SplitInferError as error:
        print(error, file=sys.stderr)
        return 1
    point = profile.point(choice.split_point, choice.batch_size)
    print(describe(profile, [point] if point else []))
    bound = "" if choice.within_bound else f"; no split point keeps within {chosen.latency_bound_ms:g} ms"
    print(
        f"For {chosen.objective}: split_point {choice.split_point}, batch_size {choice.batch_size} "
        f"({choice.throughput:.1f} images/s, {1e3 * choice.latency_s:.1f} ms{bound})"
    )
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="profile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_model(parser)
    parser.add_argument("--weights", help="like the parameter of this name; times hardly depend on them")
    parser.add_argument("--device", default="auto", help="where the backbone runs: auto, cpu, cuda, cuda:1, ...")
    parser.add_argument(
        "--precision", choices=[each.value for each in Precision], default="fp32", help="of the backbone; default: fp32"
    )
    add_model_options(parser)
    parser.add_argument(
        "--batch", type=whole, nargs="+", default=[1, 2, 4, 8], metavar="N", help="batch sizes; default: 1 2 4 8"
    )
    parser.add_argument(
        "--objective",
        choices=[each.value for each in Objective],
        default=Objective.THROUGHPUT.value,
        help="highest throughput or lowest latency; default: throughput",
    )
    parser.add_argument(
        "--latency-bound-ms",
        type=float,
        default=math.inf,
        metavar="MS",
        help="the longest latency that is allowed; default: no limit",
    )
    parser.add_argument(
        "--database", type=Path, metavar="FILE", help=f"where measurements are kept; default: {default_path()}"
    )
    parser.add_argument("--anew", action="store_true", help="measure again, even if the database has the times")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
