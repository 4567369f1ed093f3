"""The sub-commands `tune list | show | export | import | prune`, which manage the database of measurements.

Each sub-command is a function of the database and of the parsed arguments, ``chosen``.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from split_infer_ros.autotuning.record_schema import ALTERNATIVES, objection_of
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database, best_of, read_lines
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record, kind_of
from split_infer_ros.search.space import describe_config

RECORD_COMMANDS = ("list", "show", "export", "import", "prune")
DAY_S = 86_400.0
PROCESSOR = ("cpu", "instruction_set")  # the parts of a record's target that name the processor
MAX_IMPORT_BYTES = 64 << 20


def list_records(database: Database, chosen: Namespace) -> None:
    """Prints a line for each task and machine, with the number of records.

    If the task's configurations are alternatives, of which one is used, the line also names the best one.
    """
    for (where, what), records in _grouped(database.records()).items():
        print(f"{what}: {len(records)} records of {where}{_best(records)}")


def show_records(database: Database, chosen: Namespace) -> None:
    """Prints every record of the model or operator that is chosen. The fastest record of each task comes first.

    Raises:
        ConfigurationError: there is no record of that name.
    """
    found = [record for record in database.records() if _name(record) == chosen.name]
    if not found:
        names = sorted({_name(record) for record in database.records()})
        raise ConfigurationError(f"There is no record of '{chosen.name}'; there are of: {', '.join(names) or '-'}.")
    for (where, what), records in _grouped(found).items():
        print(f"{what}, {where}")
        for record in sorted(records, key=lambda each: each.median_s):
            result = f"{1e3 * record.median_s:.3f} ms" if record.error is None else f"failed: {record.error}"
            uncertain = ", uncertain" if record.uncertain else ""
            differs = f", differs by {record.facts['difference']:.1g}" if "difference" in record.facts else ""
            print(f"  {describe_config(record.config)}: {result}{uncertain}{differs}")


def export_records(database: Database, chosen: Namespace) -> None:
    """Writes the records of the chosen model or operator, or all records, to a new file.

    Raises:
        ConfigurationError: the file exists or cannot be written.
    """
    records = [record for record in database.records() if chosen.model in (None, _name(record))]
    try:
        with chosen.file.open("x") as file:
            file.writelines(f"{record.as_line()}\n" for record in records)
    except OSError as error:
        raise ConfigurationError(f"{chosen.file} cannot be written ({error}).") from error
    print(f"{len(records)} records are in {chosen.file}.")


def import_records(database: Database, chosen: Namespace) -> int:
    """Adds the records of a file to the database, if the record schema allows them.

    Prints the reason for each line that is refused. Records that the database has already are skipped.

    Returns:
        The exit code: 1 if a line was refused, else 0.

    Raises:
        ConfigurationError: the file cannot be read or is too large, or the database cannot be written.
    """
    try:
        size = chosen.file.stat().st_size
        if not chosen.file.is_file():
            raise OSError("it is a pipe, a folder or a device")
        data = chosen.file.read_bytes() if size <= MAX_IMPORT_BYTES else None
    except OSError as error:
        raise ConfigurationError(f"{chosen.file} cannot be read ({error}).") from error
    if data is None:
        raise ConfigurationError(f"{chosen.file} has more than {MAX_IMPORT_BYTES >> 20} MB; no database is so large.")
    lines, refused, _ = read_lines(data if data.endswith(b"\n") else data + b"\n")
    existing = {record.as_line() for record in database.records()}
    accepted = []
    for number, record in lines.items():
        objection = objection_of(record)
        if objection:
            refused[number] = objection
        elif record.as_line() not in existing:
            accepted.append(record)
    for number, reason in sorted(refused.items()):
        print(f"{chosen.file}, line {number} is refused: {reason}", file=sys.stderr)
    if accepted:
        _add(database, accepted)
    key = Key.here("cpu")
    here = sum(all(record.target.get(part) == key.target[part] for part in PROCESSOR) for record in accepted)
    print(f"{len(accepted)} records were taken in, {here} of them of this processor; {len(refused)} were refused.")
    return 1 if refused else 0


def prune_records(database: Database, chosen: Namespace) -> None:
    """Removes for good the records that match every chosen condition.

    Raises:
        ConfigurationError: no condition is chosen, or the database cannot be written.
    """
    now, here = time.time(), Key.here("cpu")
    if chosen.model is None and chosen.older_than is None and not chosen.other_versions and not chosen.failed:
        raise ConfigurationError("prune takes at least one of --model, --older-than, --other-versions and --failed.")

    def unwanted(record: Record) -> bool:
        return (
            (chosen.model is None or _name(record) == chosen.model)
            and (chosen.older_than is None or now - record.time > chosen.older_than * DAY_S)
            and (not chosen.other_versions or _differs(record, here))
            and (not chosen.failed or record.error is not None)
        )

    try:
        print(f"{database.prune(unwanted)} records were removed.")
    except OSError as error:
        raise ConfigurationError(f"{database.path} cannot be written ({error}); it is as it was.") from error


def add_record_commands(commands: Any) -> None:
    """Adds the five sub-commands to ``commands``, which is what ``CommandParser.add_subparsers`` returns."""
    for name, run, words in (
        ("list", list_records, "list what was measured, one line per task"),
        ("show", show_records, "show every record of a model or operator"),
        ("export", export_records, "write records to a new file, for a colleague with the same board"),
        ("import", import_records, "import a colleague's records; records outside the search space are refused"),
        ("prune", prune_records, "remove all records that match every given condition; this cannot be undone"),
    ):
        parser = commands.add_parser(name, help=words, description=words)
        parser.add_database("records")
        parser.set_defaults(run=run)
        if name == "show":
            parser.add_argument("name", help="name of the model or operator")
        if name in ("export", "import"):
            parser.add_argument("file", type=Path, help="the file of records")
        if name in ("export", "prune"):
            parser.add_argument("--model", help="only of this model or operator")
        if name == "prune":
            parser.add_argument("--older-than", type=float, metavar="DAYS", help="only records older than this")
            parser.add_argument(
                "--other-versions",
                action="store_true",
                help="only records of other versions of torch or of the measurement",
            )
            parser.add_argument("--failed", action="store_true", help="only records of failed trials")


def _add(database: Database, records: Iterable[Record]) -> None:
    try:
        database.add(records)
    except OSError as error:
        raise ConfigurationError(f"{database.path} cannot be written ({error}); nothing was taken in.") from error


def _grouped(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """Groups records by machine and versions, and by task. The keys describe both for people."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        target, versions = record.target, record.versions
        cpu = ", ".join(str(target[part]) for part in PROCESSOR if part in target)
        machine = f"{target.get('device')} ({cpu}, {target.get('cores')} cores)"
        where = f"{machine}, torch {versions.get('torch')}"
        task = record.task
        stage = " ".join(str(task[part]) for part in ("stage", "shapes", "precision") if part in task)
        groups.setdefault((where, f"{_name(record)} {stage}"), []).append(record)
    return groups


def _name(record: Record) -> str:
    return str(record.task.get("model", record.task.get("operator", record.task.get("stage"))))


def _best(records: Iterable[Record]) -> str:
    best = best_of(record for record in records if kind_of(record.task) in ALTERNATIVES)
    return "" if best is None else f", best {1e3 * best.median_s:.3f} ms: {describe_config(best.config)}"


def _differs(record: Record, here: Key) -> bool:
    versions = here.versions_for(record.task, record.config)
    return any(record.versions.get(part) != versions[part] for part in versions if part != "cuda")
