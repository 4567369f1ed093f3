"""The pages of the documentation and the examples in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_RUN, ON_REQUEST = "not run by the tests: ", "run on request: "
LANGUAGES = ("bash", "python")


@dataclass(frozen=True)
class Example:
    """A block of commands or of Python code in a page.

    Attributes:
        page: the path of the page, relative to the root of the repository.
        line: the number of the block's first line in the page, from 1.
        language: ``bash`` or ``python``.
        mark: the comment before the block, such as why it cannot be run; empty if there is none.
        text: the commands or the code.
    """

    page: str
    line: int
    language: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_quick(self) -> bool:
        """Whether every run of the tests runs this example."""
        return not self.mark.startswith((NOT_RUN, ON_REQUEST))

    @property
    def is_slow(self) -> bool:
        """Whether this example is run only if slow tests are asked for."""
        return self.mark.startswith(ON_REQUEST)


def pages() -> list[Path]:
    """Returns the paths of README, CONTRIBUTING and all pages of the documentation."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples() -> Iterator[Example]:
    """Yields the examples of all pages."""
    for path in pages():
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if line.removeprefix("```") in LANGUAGES and line.startswith("```"):
                end = lines.index("```", number)
                mark = re.fullmatch(r"<!-- (.*) -->", lines[number - 1])
                yield Example(
                    str(path.relative_to(ROOT)),
                    number + 2,
                    line.removeprefix("```"),
                    mark[1] if mark else "",
                    "\n".join(lines[number + 1 : end]) + "\n",
                )


def commands(example: Example) -> Iterator[str]:
    """Yields the commands of a bash example, without comments. Continued lines are joined."""
    for line in example.text.replace("\\\n", " ").splitlines():
        command = re.sub(r"(^|\s)#.*", "", line).strip()
        yield from (part.strip() for part in re.split(r"&&|&$|;", command) if part.strip())
