"""Measures every split point of a model on this machine, and says which one is best.

Prints the milliseconds that each stage takes for a batch when it runs alone. Prints the images a second of a saturated
pipeline and the latency of a batch. A star marks throughputs that were measured. The others are predicted. Earlier
measurements are read from the database. A tuned model is measured as nodes run it.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence

from split_infer_ros.autotuning.opening import open_model
from split_infer_ros.cli.command import CommandParser, command, model_spec_of, say, weights_of, whole
from split_infer_ros.engines.engine import AUTO
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.named_weights import NamedWeights
from split_infer_ros.runtime.cores import StageCores
from split_infer_ros.runtime.process import prepare_process
from split_infer_ros.server.profiling.profiler import Profiler
from split_infer_ros.server.profiling.stored_profile import profile_model
from split_infer_ros.split.planner import Goal, Objective, plan
from split_infer_ros.split.profile import Profile, ProfilePoint
from split_infer_ros.weight_streaming.settings import WeightsSettings


def make_parser() -> CommandParser:
    """Returns the parser of the command's arguments."""
    parser = CommandParser.of("profile", __doc__)
    parser.add_model()
    parser.add_argument("--weights", help="like the parameter of this name; times hardly depend on them")
    parser.add_device()
    parser.add_precision()
    parser.add_model_options()
    parser.add_argument(
        "--batch", type=whole, nargs="+", default=[1, 2, 4, 8], metavar="N", help="batch sizes; default: 1 2 4 8"
    )
    parser.add_argument(
        "--objective",
        choices=[each.value for each in Objective],
        default=Goal().objective.value,
        help="highest throughput, lowest latency, or the highest throughput for at most 1.2 times the lowest latency; "
        "default: balanced",
    )
    parser.add_argument(
        "--latency-bound-ms",
        type=float,
        default=math.inf,
        metavar="MS",
        help="the longest latency that is allowed; default: no limit",
    )
    parser.add_argument("--backbone-cores", default="", metavar="LIST", help="like the parameter, such as 0-3")
    parser.add_argument("--head-cores", default="", metavar="LIST", help="like the parameter, such as 4-5")
    parser.add_database("measurements")
    parser.add_anew("times")
    return parser


@command(make_parser)
def main(chosen: Namespace) -> None:
    """Prints the profile of a model and the best split point. Returns the exit code.

    Times that the database lacks are measured first.
    """
    prepare_process()
    spec = model_spec_of(chosen, weights=weights_of(chosen, NamedWeights.RANDOM), device=chosen.device)
    database = Database(chosen.database)
    cores = StageCores.parse(chosen.backbone_cores, chosen.head_cores)
    with cores.backbone.bound():  # as nodes do
        opened = open_model(spec, WeightsSettings(), database, engine=AUTO, precision=chosen.precision)
        profiler = Profiler(opened.model, say=say, cores=cores)
        profile = profile_model(profiler, chosen.batch, database, remeasure=chosen.anew)
    choice = plan(profile, Objective(chosen.objective), chosen.latency_bound_ms / 1e3)
    point = profile.point(choice.split_point, choice.batch_size)
    print(describe(profile, [point] if point else []))
    bound = "" if choice.within_bound else f"; no split point keeps within {chosen.latency_bound_ms:g} ms"
    print(
        f"For {chosen.objective}: split_point {choice.split_point}, batch_size {choice.batch_size} "
        f"({choice.throughput:.1f} images/s, {1e3 * choice.latency_s:.1f} ms{bound})"
    )


def describe(profile: Profile, chosen: Sequence[ProfilePoint] = ()) -> str:
    """Returns a table of all points, with times in milliseconds.

    A star follows each measured throughput, and ``<`` marks the chosen points.
    """
    width = max((len(point.split_point) for point in profile.points), default=3)
    columns = ("prep", "backbone", "handover", "head", "decode", "images/s", "latency")
    lines = [
        f"{profile.model} on {profile.device}; while both stages work, the backbone's runs at "
        f"{profile.contention.backbone:.2f} and the head's at {profile.contention.head:.2f} of its speed alone.",
        f"{'batch':>5}  {'split_point':<{width}}  {'KB/image':>9}  " + "  ".join(f"{column:>9}" for column in columns),
    ]
    for point in profile.points:
        times = (point.preprocess_s, point.backbone_s, point.hand_over_s, point.head_s, point.decode_s)
        star = " " if math.isnan(point.period_s) else "*"
        lines.append(
            f"{point.batch_size:>5}  {point.split_point:<{width}}  {point.bytes_per_image / 1e3:>9.1f}  "
            + "  ".join(f"{1e3 * seconds:>9.2f}" for seconds in times)
            + f"  {profile.throughput(point):>8.1f}{star}  {1e3 * profile.latency_s(point):>9.2f}"
            + ("  <" if point in chosen else "")
        )
    return "\n".join(lines)
