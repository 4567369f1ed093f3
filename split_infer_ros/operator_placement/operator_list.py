"""Reads the list that says on which processor each operator runs best. A user's file may change the package's list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.operator_placement.plan import Operator, Tag
from split_infer_ros.runtime.user_files import read_regular, user_path

DEFAULT_LIST = Path(__file__).parent / "data" / "operators.txt"
MAX_BYTES = 2**20  # the largest file that is read


def normalised(name: str) -> str:
    """Returns an operator's key in the list. ``nn.Conv2d``, ``F.conv2d`` and ``conv2d_`` have the same key."""
    return name.rpartition(".")[2].lower().replace("_", "")


@dataclass(frozen=True)
class OperatorList:
    """A rule for placement that looks up each operator in a list.

    Calling it with an operator returns where the operator runs best; None if the list does not have it.

    Attributes:
        tags: the processor of each operator, by the normalised name of the operator's kind.
    """

    tags: Mapping[str, Tag]

    def __call__(self, operator: Operator) -> Tag | None:
        return self.tags.get(normalised(operator.kind))

    @classmethod
    def read(cls, path: Path | None = None) -> OperatorList:
        """Reads the package's list, and a file that adds or replaces entries.

        Args:
            path: a text file in the format of ``data/operators.txt``. Each line has ``gpu``, ``cpu`` or ``any``, and
                then operators. An ``any`` operator runs on the processor of its first input. ``#`` begins a comment.
                None means the package's list alone.

        Raises:
            ConfigurationError: the file cannot be read, or a line has another format.
        """
        tags = _read(DEFAULT_LIST)
        return cls(tags if path is None else tags | _read(path))


def _read(path: Path) -> dict[str, Tag]:
    try:
        text = read_regular(user_path(path), MAX_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"The list of operators {path} cannot be read ({error}).") from error
    tags: dict[str, Tag] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        tag_name, *names = words
        if tag_name not in {tag.value for tag in Tag} or not names:
            raise ConfigurationError(
                f"{path}, line {number}: '{line.strip()}' is not a line of a list of operators; it takes one of "
                f"{', '.join(tag.value for tag in Tag)}, followed by operators such as conv2d."
            )
        for name in names:
            tags[normalised(name)] = Tag(tag_name)
    return tags
