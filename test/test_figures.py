"""Measured figures stand in blocks that are made from JSON files, and under docs/results; pages have no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import figures
import pytest
from documentation import ROOT

EXCEPTIONS = Path(__file__).with_name("figures_on_pages.txt")
KINDS = ("setting", "limit", "size", "paper")
MADE = "<!-- Made by scripts/"  # of a page that a script writes from the code
UNITS = "ns|us|µs|ms|s|seconds?|min|minutes?|h|hours?|days?|B|bytes?|[kKMGT]i?B|Hz|%|W|J|times"
RATES = r"(?:frames|images|requests|messages)(?:/s|\ a\ second)"
FIGURE = re.compile(
    rf"""(?<![\w.^])\d[\d,.]*(?:\ to\ \d[\d,.]*)?\ ?(?:{UNITS}|{RATES})(?!\w)  # 1.5 ms, 16 to 25 s, 90 %, 3 times
    |\b\d+\.\d+\ ?x\b                                                         # 1.3x, and no size such as 320 x 320
    |\b\d+\.\d+(?=\ of\b)                                                     # 0.81 of the baseline's""",
    re.VERBOSE,
)


def figures_in(text: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each number with a unit, outside blocks of figures and outside code."""
    is_code = False
    for number, line in enumerate(figures.without_blocks(text).splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield from ((number, found[0]) for found in FIGURE.finditer(re.sub("`[^`]*`", "`", line)))


def exceptions() -> dict[tuple[str, str], str]:
    """Returns the kind of each figure that may stand on a page, by page and figure."""
    found = {}
    for line in EXCEPTIONS.read_text().splitlines():
        if line and not line.startswith("#"):
            page, kind, told = (part.strip() for part in line.split("|"))
            assert kind in KINDS, f"{EXCEPTIONS.name}: {kind!r} is none of {', '.join(KINDS)}"
            found.update({(page, figure.strip()): kind for figure in told.split(";")})
    return found


def test_figures_on_pages_are_made_from_json_files_or_told() -> None:
    told, seen, measured = exceptions(), set(), []
    for path in figures.pages_with_figures():
        text, page = path.read_text(), str(path.relative_to(ROOT))
        for line, figure in figures_in(text) if MADE not in text else ():
            seen.add((page, figure))
            if (page, figure) not in told:
                measured.append(f"{page}:{line}: {figure}")
    assert not measured, (
        "These figures look measured. Take them from a JSON file by a block (scripts/figures.py), move them to "
        f"docs/results/notes, or leave them out. A setting, limit, size or the paper's goes to {EXCEPTIONS.name}:\n"
        + "\n".join(measured)
    )
    assert not told.keys() - seen, f"{EXCEPTIONS.name} has figures that no page has."


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("It takes 12 ms, or 1,024.5 MB.", ["12 ms", "1,024.5 MB"]),
        ("From 16 to 25 s, at 90 % and 30 frames/s.", ["16 to 25 s", "90 %", "30 frames/s"]),
        ("It serves 15 images a second (the log says `2 ms`).", ["15 images a second"]),
        ("It is 1.3 times as fast, 2.5x, and 0.81 of the best.", ["1.3 times", "2.5x", "0.81"]),
        ("Images of 320 x 320, version 2.11, MobileNetV2, batches of 8, 2^20 bytes.", []),
        ("<!-- figures: all -->\n1 ms\n<!-- end of figures -->", []),
        ("```\n1 ms\n```", []),
    ],
)  # fmt: skip
def test_number_with_a_unit_is_found(line: str, found: list[str]) -> None:
    assert [figure for _, figure in figures_in(line)] == found
