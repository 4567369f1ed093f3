#!/usr/bin/env python3
"""Makes docs/results/README.md from the JSON files of benchmarks beside it.

    scripts/results.py [FOLDER]

Each benchmark has a section. Results of the same command stand side by side, a column for each machine.
FOLDER/notes/BENCH.md holds text about a benchmark that no figure can say.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from figures import blocks_of, fill, pages_with_figures
from result_files import FOLDER, REPEATED, TITLES, Results, column_of, machine_of, read_results, short, table

VERDICTS = ("holds", "does not hold", "unclear")
SHARES = {"peak_mb": "peak memory, MB", "cpu_busy": "all cores busy", "backbone_busy": "backbone busy",
          "head_busy": "head busy", "start_s": "first detection, s", "processor_s": "processor time, s",
          "resident_mb": "resident memory, MB", "anonymous_mb": "anonymous memory, MB"}  # fmt: skip
CHOICES = {"chosen": "by auto", "best_fixed": "best fixed choice"}
NAMES = ("model", "way", "rival", "configuration", "operator", "case", "what", "load", "batch_size", "device")


def page(results: Sequence[Results], notes: Mapping[str, str], repeated: Mapping[str, Any] | None = None) -> str:
    """Returns the whole page in Markdown."""
    return "\n".join(_lines(results, notes, repeated)) + "\n"


def _lines(results: Sequence[Results], notes: Mapping[str, str], repeated: Mapping[str, Any] | None) -> Iterator[str]:
    yield "# What was measured"
    yield ""
    yield "This page is made by `scripts/results.py` from the JSON files beside it."
    yield ""
    yield "- A figure is a median over turns, in which rivals alternate. Its 95 % interval stands in brackets."
    yield "- A claim *holds* or *does not hold* where its whole interval decides that; else it is *unclear*."
    yield "- Fewer than ten independent samples are unclear, whatever they say. `counted` figures have no interval."
    yield "- *Paper* is the paper's own figure for the same, on its machine."
    yield "- Peak memory of rivals that share a process is that of the whole process while the rival has its turn."
    verdicts = [claim["verdict"] for result in results for claim in result["claims"]]
    held, failed, unclear = (verdicts.count(each) for each in VERDICTS)
    yield ""
    yield f"Claims that hold: {held}. Claims that do not hold: {failed}. Unclear ones: {unclear}."
    if repeated is not None:
        yield from _repeatability(repeated)
    for bench, title in TITLES.items():
        its = [result for result in results if result["bench"] == bench]
        if its or bench in notes:
            yield from ["", f"## {title}"]
        if bench in notes:
            yield from ["", notes[bench].strip()]
        for same in _by_command(its):
            yield from _section(same)
    for name, text in notes.items():
        if name not in TITLES:
            yield from ["", text.strip()]


def _by_command(results: Sequence[Results]) -> list[list[Results]]:
    """Returns the results in groups: those of the same command are together."""
    groups: dict[tuple[str, ...], list[Results]] = {}
    for result in results:
        groups.setdefault(tuple(result["arguments"]), []).append(result)
    return list(groups.values())


def _section(results: Sequence[Results]) -> Iterator[str]:
    first = results[0]
    yield ""
    yield f"`scripts/run bench {shlex.join([first['bench'], *first['arguments']])}`"
    yield ""
    for result in results:
        picture = f" ([picture]({result['stem']}.png))" if result["has_picture"] else ""
        yield f"- [{result['stem']}]({result['stem']}.json){picture}: {machine_of(result)}"
    yield ""
    columns = [column_of(result) for result in results]
    yield from table(
        ["claim", "goal", "paper", *(cell for column in columns for cell in (column, "verdict"))],
        (
            [name, claim["goal"], claim["paper"], *(cell for result in results for cell in _found(result, name))]
            for name, claim in _claims(results).items()
        ),
    )
    for result in results:
        yield from _of_rows(result, "What rivals take", SHARES)
        yield from _of_rows(result, "What was chosen", CHOICES)


def _claims(results: Sequence[Results]) -> dict[str, Mapping[str, Any]]:
    return {claim["name"]: claim for result in results for claim in result["claims"]}


def _found(result: Results, name: str) -> tuple[str, str]:
    """Returns a claim's figure with its interval, and its verdict; two empty texts if the result has no such claim."""
    claim = next((each for each in result["claims"] if each["name"] == name), None)
    if claim is None:
        return "", ""
    verdict = claim["verdict"] if claim["verdict"] == "holds" else f"**{claim['verdict']}**"
    if claim["value"] is None:
        return "not measured", verdict
    interval = "counted" if not claim["turns"] else f"{short(claim['low'])} to {short(claim['high'])}"
    turns = f", {claim['turns']} turns" if claim["turns"] else ""
    if claim["settles_s"]:
        verdict += f" ({_in_time(claim['settles_s'])} of turns would settle it)"
    return f"{short(claim['value'])} {claim['unit']} ({interval}{turns})", verdict


def _of_rows(result: Results, title: str, columns: Mapping[str, str]) -> Iterator[str]:
    """Yields a table of the rows that have one of the columns; nothing if there is no such row."""
    rows = [row for row in result["rows"] if any(key in row for key in columns)]
    found = [key for key in columns if any(row.get(key) is not None for row in rows)]
    if not found:
        return
    named = {tuple(str(row[key]) for key in NAMES if row.get(key) is not None): row for row in rows}
    yield ""
    yield f"{title}, {result['stem']}:"
    yield ""
    cells = ([", ".join(name), *(_cell(row.get(key)) for key in found)] for name, row in named.items())
    yield from table(["rival", *(columns[key] for key in found)], cells)


def _cell(value: str | float | None) -> str:
    return value if isinstance(value, str) else short(value)


def _repeatability(repeated: Mapping[str, Any]) -> Iterator[str]:
    """Yields the section about how the verdicts of quick runs agree."""
    claims = [(bench, name, verdicts) for bench, of in repeated["claims"].items() for name, verdicts in of.items()]
    changed = [each for each in claims if {"holds", "does not hold"} <= set(each[2])]
    runs = repeated["runs"]
    yield from ["", "## How quick runs agree", ""]
    yield f"`scripts/repeatability.py --runs {runs}`, {machine_of(repeated)}."
    yield ""
    yield f"{len(changed)} of {len(claims)} claims changed between *holds* and *does not hold* over {runs} quick runs."
    yield ""
    rows = []
    for bench, seconds in repeated["seconds"].items():
        its = [verdicts for of, _, verdicts in claims if of == bench]
        counts = [str(sum(set(verdicts) == {each} for verdicts in its)) for each in VERDICTS]
        flips = sum({"holds", "does not hold"} <= set(verdicts) for verdicts in its)
        mixed = len(its) - sum(map(int, counts)) - flips
        rows.append([bench, str(len(its)), *counts, str(mixed), str(flips), f"{max(seconds):.0f}"])
    yield from table(
        ["benchmark", "claims", "always hold", "never hold", "always unclear", "clear in some runs", "changed",
         "longest run, s"],
        iter(rows),
    )  # fmt: skip
    if changed:
        yield ""
        yield from table(["benchmark", "changed claim", *(f"run {run + 1}" for run in range(runs))],
                          ([bench, name, *verdicts] for bench, name, verdicts in changed))  # fmt: skip


def _in_time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else f"{short(seconds / 60)} min"


def read_notes(folder: Path) -> dict[str, str]:
    """Returns the texts of a folder, by the names of their files without the suffix."""
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.md"))}


def main() -> int:
    """Write the page, and the blocks of figures on other pages."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    repeated = json.loads((folder / REPEATED).read_text()) if (folder / REPEATED).exists() else None
    results = read_results(folder)
    (folder / "README.md").write_text(page(results, read_notes(folder / "notes"), repeated))
    if folder == FOLDER:
        blocks = blocks_of(results)
        for path in pages_with_figures():
            path.write_text(fill(path.read_text(), blocks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
