"""The list of operators and where they perform: data of this package, and what a user's file adds or changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.operator_placement.plan import Operator, Tag

LISTED = Path(__file__).parent / "data" / "operators.txt"


def spelling(name: str) -> str:
    """Under which a kind is looked up: ``nn.Conv2d``, ``F.conv2d`` and ``conv2d_`` are one operator."""
    return name.rpartition(".")[2].lower().replace("_", "")


@dataclass(frozen=True)
class OperatorList:
    """A rule of the planner.

    Attributes:
        tags: by the spelling of an operator's kind.
    """

    tags: Mapping[str, Tag]

    def __call__(self, operator: Operator) -> Tag | None:
        return self.tags.get(spelling(operator.kind))

    @classmethod
    def read(cls, path: Path | None = None) -> OperatorList:
        """The package's list, in which a file adds or replaces lines.

        Args:
            path: of a text file of the form of ``data/operators.txt``: on each line ``gpu``, ``cpu`` or ``any``, then
                operators of that kind; ``#`` begins a comment.

        Raises:
            ConfigurationError: it cannot be read, or a line has another form.
        """
        tags = _read(LISTED)
        return cls(tags if path is None else tags | _read(path))


def _read(path: Path) -> dict[str, Tag]:
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"The list of operators {path} cannot be read ({error}).") from error
    tags: dict[str, Tag] = {}
    for number, line in enumerate(text.splitlines(), 1):
        where, *names = line.partition("#")[0].split() or ("",)
        if where and (where not in {tag.value for tag in Tag} or not names):
            raise ConfigurationError(
                f"{path}, line {number}: '{line.strip()}' is none of a list of operators; a line is one of "
                f"{', '.join(tag.value for tag in Tag)}, and behind it operators such as conv2d."
            )
        for name in names:
            tags[spelling(name)] = Tag(where)
    return tags
