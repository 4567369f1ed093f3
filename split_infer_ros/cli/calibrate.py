"""Measures what memory costs on this machine: the constants from which memory_policy auto predicts.

Prints each constant with its symbol in the paper and the spread between rounds. A constant whose rounds disagree is
measured again. If they still disagree, it is uncertain and not used. Earlier measurements are read from the database.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path

from split_infer_ros.errors import SplitInferError
from split_infer_ros.measurements.database import Database, default_path
from split_infer_ros.memory_cost.calibration import Calibration
from split_infer_ros.memory_cost.constants import ALL_CONSTANTS, Constant
from split_infer_ros.memory_cost.machine import calibrate_machine
from split_infer_ros.split.load import choose_device
from split_infer_ros.telemetry.machine import cpu_name, gpu_name

MB = 1e6


def main() -> int:
    """Runs the command and returns its exit code."""
    chosen = make_parser().parse_args()
    try:
        device = choose_device(chosen.device)
        found = calibrate_machine(device, Database(chosen.database), remeasure=chosen.anew, say=_say)
    except SplitInferError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join((f"Memory of {gpu_name(str(device)) or cpu_name()}", *describe(found))))
    return 0


def describe(found: Calibration) -> Iterator[str]:
    """Yields a line for each constant of Table III (paper 003)."""
    for row in ALL_CONSTANTS:
        yield f"  {row.symbol:<13} {row.description:<45} {_value(found, row)}"


def _value(found: Calibration, row: Constant) -> str:
    if row.name not in found.measured:
        return "absent here"
    value, spread = found.measured[row.name], found.spreads[row.name]
    number = "no bound" if math.isinf(value) else f"{value * (MB if row.is_per_byte else 1):.3g}"
    unit = "" if math.isinf(value) else " ms/MB" if row.is_per_byte else " ms"
    text = f"{number}{unit} (spread {100 * spread:.0f} %)" if math.isfinite(spread) else f"{number}{unit}"
    return f"{text}: uncertain, not used" if row.name in found.uncertain else text


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="calibrate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto", help="where the backbone runs: auto, cpu, cuda, cuda:1, ...")
    parser.add_argument(
        "--database", type=Path, metavar="FILE", help=f"where measurements are kept; default: {default_path()}"
    )
    parser.add_argument("--anew", action="store_true", help="measure again, even if the database has the constants")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
