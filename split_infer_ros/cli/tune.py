"""Finds the fastest way to run a model on this machine and stores it, or manages what was measured.

tune MODEL searches how the network is run. Then it searches the split point, the batch size and the threads of both
stages. Every trial is stored at once, so nothing is lost at Ctrl-C or the time limit, and a later search goes on from
there.

tune list | show MODEL | export FILE | import FILE | prune manage the database of all measurements.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import replace

from tqdm import tqdm

from split_infer_ros.autotuning.best_known import find_best_known
from split_infer_ros.autotuning.progress import Progress
from split_infer_ros.autotuning.trial_process import TrialProcess
from split_infer_ros.autotuning.tune import Tuner
from split_infer_ros.cli.command import CommandParser, command, model_spec_of, positive, weights_of, whole
from split_infer_ros.cli.tune_records import RECORD_COMMANDS, add_record_commands
from split_infer_ros.engines.engine import AUTO, check_engine
from split_infer_ros.engines.precision import Precision
from split_infer_ros.engines.precision_checks import wants_torch
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.named_weights import NamedWeights
from split_infer_ros.search.space import describe_config
from split_infer_ros.search.strategies import SearchStrategy
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_engines import choose_precision


def make_parser() -> CommandParser:
    """Returns the parser of the arguments of a search."""
    parser = CommandParser.of("tune", __doc__)
    parser.add_model()
    parser.add_argument("--seconds", type=positive, default=120.0, metavar="N", help="how long to search; default: 120")
    parser.add_argument(
        "--weights",
        help="like the parameter of this name; times hardly depend on them; default: random, and for shapes default",
    )
    parser.add_device()
    parser.add_argument(
        "--engine",
        default=AUTO,
        metavar="ENGINE",
        help="the only engine to try, like the parameter of this name; default: all",
    )
    parser.add_model_options()
    parser.add_argument(
        "--allow",
        nargs="+",
        default=[],
        choices=[each.value for each in Precision],
        help="precisions to try besides fp32; their results differ more; the pipeline is tuned for each",
    )
    parser.add_argument(
        "--batch", type=whole, default=1, metavar="N", help="batch size while the network is tuned alone; default: 1"
    )
    parser.add_argument(
        "--search", choices=[strategy.value for strategy in SearchStrategy], default="guided", help="default: guided"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the search")
    parser.add_database("records")
    return parser


def make_record_parser() -> CommandParser:
    """Returns the parser of the sub-commands for records."""
    parser = CommandParser.of("tune", "Manages the database of measurements.")
    add_record_commands(parser.add_subparsers(required=True))
    return parser


def main() -> int:
    """Runs the search, or a sub-command that manages records, such as ``list``. Returns the exit code."""
    positional = [word for word in sys.argv[1:] if not word.startswith("-")]
    return _manage_records() if positional and positional[0] in RECORD_COMMANDS else _tune()


@command(make_record_parser)
def _manage_records(chosen: Namespace) -> int | None:
    exit_code: int | None = chosen.run(Database(chosen.database), chosen)
    return exit_code


@command(make_parser)
def _tune(chosen: Namespace) -> None:
    check_engine(chosen.engine)
    precisions = tuple(dict.fromkeys((Precision.FP32, *map(Precision, chosen.allow))))
    on_torch = wants_torch(chosen.engine, precisions)
    weights = weights_of(chosen, NamedWeights.RANDOM)
    spec = model_spec_of(chosen, weights=weights, device=chosen.device, on_torch=on_torch)
    model = load_model(spec)
    database = Database(chosen.database)
    engines = () if chosen.engine == AUTO else (chosen.engine,)
    for precision in precisions:
        choose_precision(model, (precision,), AUTO)  # raises an error if no engine has it
    bar = _Bar(chosen.seconds)
    with TrialProcess(replace(spec, device=str(model.device))) as runner:
        tuner = Tuner(
            model,
            runner,
            database,
            strategy=SearchStrategy(chosen.search),
            precisions=precisions,
            batch_size=chosen.batch,
            seed=chosen.seed,
            report=bar.show,
            say=bar.say,
            engines=engines,
        )
        try:
            tuner.tune(chosen.seconds)
        except KeyboardInterrupt:
            print("Stopped; what was measured is kept.", file=sys.stderr)
        finally:
            bar.close()
    for precision in precisions:
        found = find_best_known(model, database, precision, chosen.batch, engines)
        print(f"{model.entry.name} on {model.device}, {precision.value}: {found}")


class _Bar:
    """A bar on the error output. It shows the elapsed time and the best trial so far."""

    def __init__(self, seconds: float) -> None:
        bar_format = "{desc} |{bar}| {n:.0f}/{total:.0f} s"
        self._bar = tqdm(total=seconds, bar_format=bar_format, desc="network", mininterval=0.0, file=sys.stderr)

    def show(self, progress: Progress) -> None:
        """Shows the progress after another trial."""
        self._bar.n = min(self._bar.total, self._bar.format_dict["elapsed"])
        if progress.record is not None and progress.record.error:
            self._bar.write(
                f"  failed: {describe_config(progress.record.config)}: {progress.record.error}", file=sys.stderr
            )
        text = f"{progress.stage} {progress.num_trials}/{progress.space_size}"
        if progress.best is not None:
            text += f", best {1e3 * progress.best.median_s:.1f} ms"
            if progress.default is not None and progress.default.error is None:
                text += f", {progress.default.median_s / progress.best.median_s:.2f} times the defaults' speed"
        self._bar.set_description_str(text)

    def say(self, sentence: str) -> None:
        """Prints a sentence above the bar."""
        self._bar.write(f"  {sentence}", file=sys.stderr)

    def close(self) -> None:
        """Ends the bar. Its last line stays visible."""
        self._bar.close()
