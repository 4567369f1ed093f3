"""Measures what memory costs on this machine: the constants from which memory_policy auto predicts.

Prints each constant with its symbol in the paper and the spread between rounds. A constant whose rounds disagree is
measured again. If they still disagree, it is uncertain and not used. Earlier measurements are read from the database.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator

from split_infer_ros.cli.command import CommandParser, command, say
from split_infer_ros.measurements.database import Database
from split_infer_ros.memory_cost.calibration import Calibration
from split_infer_ros.memory_cost.constants import ALL_CONSTANTS, Constant
from split_infer_ros.memory_cost.machine import calibrate_machine
from split_infer_ros.split.load import choose_device
from split_infer_ros.telemetry.machine import cpu_name, gpu_name

MB = 1e6


def make_parser() -> CommandParser:
    """Returns the parser of the command's arguments."""
    parser = CommandParser.of("calibrate", __doc__)
    parser.add_device()
    parser.add_database("measurements")
    parser.add_anew("constants")
    return parser


@command(make_parser)
def main(chosen: Namespace) -> None:
    """Prints the constants of this machine. Measures them first if the database lacks them. Returns the exit code."""
    device = choose_device(chosen.device)
    found = calibrate_machine(device, Database(chosen.database), remeasure=chosen.anew, say=say)
    print("\n".join((f"Memory of {gpu_name(str(device)) or cpu_name()}", *describe(found))))


def describe(found: Calibration) -> Iterator[str]:
    """Yields a line of text for each constant of the paper's Table III (paper 003), with its value and spread."""
    for row in ALL_CONSTANTS:
        yield f"  {row.symbol:<13} {row.description:<45} {_value(found, row)}"


def _value(found: Calibration, row: Constant) -> str:
    if row.name not in found.measured:
        return "absent here"
    value, spread = found.measured[row.name], found.spreads[row.name]
    factor, unit = (MB, "ms/MB") if row.is_per_byte else (1, "ms")
    text = "no bound" if math.isinf(value) else f"{value * factor:.3g} {unit}"
    if math.isfinite(spread):
        text += f" (spread {100 * spread:.0f} %)"
    return f"{text}: uncertain, not used" if row.name in found.uncertain else text
