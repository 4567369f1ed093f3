"""Renew the table of drop reasons in the documents from the registry, ``split_infer_ros/drop_reason.py``.

scripts/run python scripts/drop_reasons.py
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from split_infer_ros.drop_reason import DropReason

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- drop reasons: begin -->\n", "<!-- drop reasons: end -->\n"


def table() -> str:
    """Returns the table in Markdown. Neighbouring reasons with the same meaning share a row."""
    rows = ["| name | what happened | intended | reported by |", "|---|---|---|---|"]
    for (meaning, intended, reporter), reasons in groupby(
        DropReason, key=lambda reason: (reason.meaning, reason.intended, reason.reporter)
    ):
        names = ", ".join(f"`{reason.value}`" for reason in reasons)
        rows.append(f"| {names} | {meaning} | {'yes' if intended else 'no'} | {reporter.value} |")
    return "\n".join(rows) + "\n"


def documents() -> list[Path]:
    """Returns the documents that contain the table, between its two markers."""
    return [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if BEGIN in path.read_text()]


def table_in(document: Path) -> str:
    """Returns the table as it stands in a document."""
    return document.read_text().partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    """Renew the table in each document that contains it."""
    for path in documents():
        before, _, rest = path.read_text().partition(BEGIN)
        path.write_text(before + BEGIN + table() + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
