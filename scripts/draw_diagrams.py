"""Draws the diagrams of the documentation from their text.

    scripts/run python scripts/draw_diagrams.py

Each ``docs/diagrams/NAME.dot`` becomes ``docs/diagrams/NAME.svg``. Pictures are committed, so that readers of
the documentation's source see them without building it.
"""

from __future__ import annotations

from pathlib import Path

import pygraphviz

DIAGRAMS = Path(__file__).parents[1] / "docs" / "diagrams"


def main() -> None:
    """Draws all diagrams."""
    for path in sorted(DIAGRAMS.glob("*.dot")):
        pygraphviz.AGraph(string=path.read_text()).draw(path.with_suffix(".svg"), prog="dot")


if __name__ == "__main__":
    main()
