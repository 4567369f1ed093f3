"""Writes the reference pages of the documentation from the tables in the code.

    scripts/run python scripts/reference.py

Each page holds what the code says: the parameters of the nodes, the drop reasons, the options of the commands, and the
messages. A test compares the pages with the code.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import ModuleType

from split_infer_ros.__main__ import executables
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.measurements.database import default_path
from split_infer_ros.nodes.camera import CameraParameters
from split_infer_ros.nodes.head import HeadParameters
from split_infer_ros.nodes.parameters.backbone import BackboneParameters
from split_infer_ros.nodes.parameters.table import Rows
from split_infer_ros.nodes.parameters.tenants import TENANT, TenantParameters, TenantsParameters
from split_infer_ros.nodes.stats import StatsParameters
from split_infer_ros.nodes.vision_info import LABELS_PARAMETER
from split_infer_ros.setting import COMPUTING, LOADING, Setting
from split_infer_ros.split.model_spec import ModelSpec

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
NODES = {
    "backbone": BackboneParameters,
    "head": HeadParameters,
    "tenants": TenantsParameters,
    "camera": CameraParameters,
    "stats": StatsParameters,
}
# The parameters that only a node itself sets, with their meanings, by the node's name.
LABELS = "The name of each label, by index. It exists once the model is loaded."
STATUS = {
    "head": {LABELS_PARAMETER: LABELS},
    "tenants": {f"{TENANT}.NAME.{LABELS_PARAMETER}": LABELS},
}
GENERATED = "<!-- Made by scripts/reference.py from the code. -->\n"


def pages() -> dict[str, str]:
    """Returns the text of each generated page by its name."""
    return {
        "parameters.md": parameters_page(),
        "drop_reasons.md": drop_reasons_page(),
        "command_line.md": command_line_page(),
        "messages.md": messages_page(),
    }


def parameters_page() -> str:
    """Returns the tables of all nodes' parameters, grouped by purpose."""
    text = f"""# Parameters

{GENERATED}
You can change parameters while frames flow (`ros2 param set`), unless they are marked as read-only. Those are set at
the start. A change is checked as a whole, and takes effect as a whole between two batches. If it is refused, the error
says what would be accepted.

For each of its topics, a node also has the parameters [`qos_overrides.*`](topics.md#quality-of-service).
"""
    for node, table in NODES.items():
        text += f"\n## Node `{node}`\n"
        for purpose, rows in _by_purpose(table):
            text += (
                f"\n### {purpose}\n\n| parameter | default | values | what it does |\n|---|---|---|---|\n"
                + "".join(rows)
            )
        if node in STATUS:
            text += "\n### Set by the node itself\n\n| parameter | what it is |\n|---|---|\n"
            text += "".join(f"| `{name}` | {meaning} |\n" for name, meaning in STATUS[node].items())
    return text


def _by_purpose(table: type) -> Iterator[tuple[str, list[str]]]:
    """Yields each purpose with its rows."""
    groups: dict[str, list[str]] = {each: [] for each in (table.PURPOSE, ModelSpec.PURPOSE, LOADING, COMPUTING)}
    of = {"of": {"NAME": TenantParameters()}} if table is TenantsParameters else {}
    for name, (row, value) in Rows(table).flat(table(**of)).items():
        facts = row.setting
        mark = " (read-only)" if facts.read_only else ""
        default = f"[{', '.join(value)}]" if isinstance(value, tuple) else str(value)
        cells = [
            f"`{name}`{mark}",
            f"`{default}`" if default else "empty",
            _values(facts),
            _escaped(facts.description),
        ]
        groups.setdefault("Each tenant" if "." in name else row.purpose, []).append(f"| {' | '.join(cells)} |\n")
    yield from ((purpose, rows) for purpose, rows in groups.items() if rows)


def _values(facts: Setting) -> str:
    if facts.choices:
        return ", ".join(f"`{choice}`" for choice in facts.choices)
    low, high = facts.minimum, facts.maximum
    return "" if low is None and high is None else f"{_number(low)} to {_number(high)}"


def _number(value: float | None) -> str:
    return "any" if value is None else f"{value:,.10g}"


def drop_reasons_page() -> str:
    """Returns the table of drop reasons. Neighbouring reasons with the same meaning share a row."""
    text = f"""# Drop reasons

{GENERATED}
Every frame is accounted for. At every instant, received = published + dropped + in flight, and `report.dropped` in
`/stats` counts the dropped frames by their reasons. If an unintended reason keeps all results from coming,
`/diagnostics` names it.

| reason | what happened to the frame | intended | reported by |
|---|---|---|---|
"""
    for (meaning, intended, reporter), reasons in groupby(
        DropReason, key=lambda reason: (reason.meaning, reason.intended, reason.reporter)
    ):
        names = ", ".join(f"`{reason.value}`" for reason in reasons)
        text += f"| {names} | {meaning} | {'yes' if intended else 'no'} | {reporter.value} |\n"
    return text


def command_line_page() -> str:
    """Returns the options of every command that needs no ROS."""
    text = f"""# Command line

{GENERATED}
These commands need no ROS:

| where | how to run a command |
|---|---|
| in a checkout | `scripts/run COMMAND` |
| in a colcon workspace | `ros2 run split_infer_ros COMMAND` |
| in the source tree, without ROS | `python -m split_infer_ros COMMAND` |
"""
    for name, module in sorted(executables().items()):
        if ".cli." not in module:
            continue
        command = importlib.import_module(module)
        parser = command.make_parser()
        text += f"\n## `{name}`\n\n{_description(parser)}\n\n{_options(parser)}"
        for word, each in _sub_commands(command):
            text += f"\n### `{name} {word}`\n\n{_description(each)}\n\n{_options(each)}"
    return text


def _sub_commands(command: ModuleType) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yields the sub-commands of a command, if it has any."""
    if hasattr(command, "make_record_parser"):
        for action in command.make_record_parser()._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from action.choices.items()


def _description(parser: argparse.ArgumentParser) -> str:
    text = (parser.description or "").strip()
    return re.sub(r"(?m)^    +(?=\S)", "    ", text[:1].upper() + text[1:])


def _options(parser: argparse.ArgumentParser) -> str:
    rows = []
    for action in parser._actions:
        if isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
            continue
        name = action.option_strings[-1] if action.option_strings else action.dest.upper()
        choices = "|".join(map(str, action.choices)) if action.choices else ""
        takes = "" if action.nargs == 0 else str(action.metavar or choices or action.dest.upper())
        shown = f"{name} {takes}".strip() if action.option_strings else name
        expanded = (action.help or "") % {**vars(action), "prog": parser.prog}
        words = expanded.replace(str(default_path()), "~/.cache/split_infer_ros/tuning.jsonl")
        rows.append(f"| `{_escaped(shown)}` | {_escaped(words)} |\n")
    return "| argument | what it does |\n|---|---|\n" + "".join(rows) if rows else ""


def messages_page() -> str:
    """Returns the definitions of all messages."""
    text = f"# Messages\n\n{GENERATED}\nThese are the definitions of the package's own messages.\n"
    for path in sorted((ROOT / "msg").glob("*.msg")):
        text += f"\n## `{path.stem}`\n\n```text\n{path.read_text().strip()}\n```\n"
    return text


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Writes the pages."""
    for name, text in pages().items():
        (REFERENCE / name).write_text(text)


if __name__ == "__main__":
    main()
