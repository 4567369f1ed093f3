#!/usr/bin/env python3
"""Gives damaged model files to a process like a node, and writes the outcomes to docs/results/notes/hostile_files.md.

    scripts/run python scripts/fuzz_files.py [--count N] [--seconds S] [--format NAME] [--folder FOLDER]

The run can be made in pieces. Each piece adds to FOLDER/found.jsonl and continues where the last one ended. Once there
are enough files of each format of a section, that section of the page is made anew. The other sections stay as they
are.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results" / "notes" / "hostile_files.md"
SECTIONS = {  # the page's sections, with their formats and the number of files of each format
    "Hostile model files": (("ONNX", "exported program", "state dict", "safetensors", "packed weights"), 2000),
    "Hostile models of every decoder, and descriptions": (("ONNX of every decoder", "description"), 1000),
}
FORMATS = tuple(name for formats, _ in SECTIONS.values() for name in formats)
MAX_SENTENCES = 30
FAILURES = ("death", "hang", "unexpected")

Found = Mapping[str, Any]


def main() -> int:
    """Tries files until all are done or the time is over. Returns 1 if the process did not survive one of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, help="files of each format (2,000 or 1,000, as on the page)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which this piece ends")
    parser.add_argument("--format", choices=FORMATS, action="append", help="only this format")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/split_infer_ros_fuzz"), help="for files and results")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    log = chosen.folder / "found.jsonl"
    end = time.monotonic() + chosen.seconds
    counts = {name: chosen.count or count for formats, count in SECTIONS.values() for name in formats}
    for name in chosen.format or FORMATS:
        done = {found["number"] for found in read(log) if found["format"] == name}
        _try(name, [number for number in range(counts[name]) if number not in done], chosen.folder, log, end)
    results = read(log)
    print(f"{len(results):,} files are done, and {len(failures(results))} were not survived.")
    for found in failures(results):
        print(f"{found['format']}, file {found['number']}, {found['kind']}: {found['outcome']} {found['sentence']}")
    tried = Counter(found["format"] for found in results)
    for title, (formats, _) in SECTIONS.items():
        if all(tried[name] >= counts[name] for name in formats):
            PAGE.write_text(with_section(PAGE.read_text(), title, results))
            print(f"The section {title} of {PAGE} is made.")
    return 1 if failures(results) else 0


def read(log: Path) -> list[Found]:
    """Returns the outcomes so far."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def failures(results: Iterable[Found]) -> list[Found]:
    """Returns the files at which the process died, hung, raised anything but a sentence, or ran code."""
    return [found for found in results if found["ran"] or found["outcome"].startswith(FAILURES)]


def with_section(page: str, title: str, results: Iterable[Found]) -> str:
    """Returns the page with one section made anew. A new section goes to the end."""
    made = section(title, [found for found in results if found["format"] in SECTIONS[title][0]])
    before, heading, rest = page.partition(f"## {title}\n")
    if not heading:
        return page.rstrip("\n") + "\n\n" + made
    _, following, after = rest.partition("\n## ")
    return before + made + following + after


def section(title: str, results: Sequence[Found]) -> str:
    """Returns a section in Markdown, made from the results of its files."""
    lines = [
        f"## {title}",
        "",
        f"`scripts/run python scripts/fuzz_files.py` gave {len(results):,} damaged files to a process that",
        "loads, splits and runs a model as a node does. *Inspection* is the process that reads a file first. Where a",
        "file ended it or made it late, the node said so and went on.",
        "",
        "| format, damage | files | served | sentences | inspections ended | inspections late | deaths | hangs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in SECTIONS[title][0]:
        of_format = [found for found in results if found["format"] == name]
        lines.append(_row(f"**{name}**", of_format))
        kinds = dict.fromkeys(found["kind"] for found in of_format)
        lines += [_row(kind, [found for found in of_format if found["kind"] == kind]) for kind in kinds]
    inspection, node = (max(_peak(found, key) for found in results) for key in ("inspection", ""))
    ran = sum(bool(found["ran"]) for found in results)
    lines += [
        "",
        f"Most memory, imports included: {inspection:,.0f} MB in an inspection, {node:,.0f} MB in the process like a",
        f"node. Files whose code ran: {ran}.",
        "",
        "Sentences by kind, the most frequent ones; what stands in place of names, numbers and reasons is left out:",
        "",
        "| files | sentence |",
        "|---|---|",
    ]
    told = Counter(kind_of(found["sentence"]) for found in results if found["sentence"])
    lines += [f"| {count} | {sentence} |" for sentence, count in told.most_common(MAX_SENTENCES)]
    rest = told.most_common()[MAX_SENTENCES:]
    lines += [f"| {sum(count for _, count in rest)} | {len(rest)} other kinds |"] if rest else []
    return "\n".join(lines) + "\n"


def kind_of(sentence: str) -> str:
    """Returns a sentence without the parts that differ from file to file."""
    text = re.sub(r"\S*/?model\.(onnx|pt2|pth|safetensors|weights|yaml)", "FILE", sentence.replace("\n", " "))
    text = re.sub(r"'[^']*'", "'…'", text)
    text = re.sub(r"\(.*\)", "(…)", text)
    text = re.sub(r"-?\d[\d,.]*\d|\d", "N", text)
    return re.split(r"(?<=[a-z)])[:;.] ", text)[0].replace("|", r"\|")[:140]


def _try(name: str, numbers: Sequence[int], folder: Path, log: Path, end: float) -> None:
    sys.path.insert(0, str(ROOT / "test" / "helpers"))
    from hostile_worker import fuzz

    if not numbers or time.monotonic() > end:
        return
    with log.open("a", buffering=1) as file:
        for found in fuzz(((name, number) for number in numbers), folder):
            file.write(json.dumps(found) + "\n")
            if time.monotonic() > end:
                return


def _row(name: str, results: Sequence[Found]) -> str:
    outcomes = Counter(found["outcome"].partition(" ")[0] for found in results)
    ended = sum("died" in found["inspection"] for found in results)
    late = sum("late" in found["inspection"] for found in results)
    sentences = outcomes["sentence"] + outcomes["unexpected"]
    cells = (len(results), outcomes["served"], sentences, ended, late, outcomes["death"], outcomes["hang"])
    return f"| {name} | {' | '.join(f'{cell:,}' for cell in cells)} |"


def _peak(found: Found, part: str) -> float:
    holder = found[part] if part else found
    return float(holder.get("peak_bytes", 0)) / 1e6


if __name__ == "__main__":
    sys.exit(main())
