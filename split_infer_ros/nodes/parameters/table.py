"""Rows: a node's table of parameters is a frozen dataclass, each field a row with all that is to be known of it.

    @dataclass(frozen=True)
    class HeadParameters:
        score_threshold: float = parameter(0.5, "Scores below it are dropped.", at_least=0.0, at_most=1.0)

As ROS parameters hold no lists of records, a table may have a family of rows: ``tenants.NAME.model`` for each NAME in
the list ``tenants``.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from split_infer_ros.errors import ConfigurationError

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", tuple: "a list of texts"}


def parameter(
    default: Any,
    description: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: Sequence[str] = (),
    read_only: bool = False,
) -> Any:
    """A row of a node's table: a dataclass field with all that ROS and users want to know of it."""
    facts = {
        "description": description,
        "at_least": at_least,
        "at_most": at_most,
        "choices": tuple(choices),
        "read_only": read_only,
    }
    return dataclasses.field(default=default, metadata=facts)


def like(table: type[Any], name: str, **changes: Any) -> Any:
    """That row of another table, but for ``changes``, of which ``default`` may be one."""
    row = table.__dataclass_fields__[name]
    return parameter(**{"default": row.default, **row.metadata, **changes})


def family(names: str, table: type[Any]) -> Any:
    """A field from names to tables, whose rows are the parameters ``NAMES.NAME.row``; the row ``names`` lists them."""
    return dataclasses.field(default_factory=dict, metadata={"family": names, "table": table})


@dataclasses.dataclass(frozen=True)
class NodeParameters:
    """What every node can be told."""

    autostart: bool = parameter(True, "Configure and activate at start.", read_only=True)


class Rows:
    """The rows of a table by the names of their parameters, those of a family among them."""

    def __init__(self, table: type[Any]) -> None:
        fields = dataclasses.fields(table)
        self._plain = {field.name: field for field in fields if "family" not in field.metadata}
        self._family = next((field for field in fields if "family" in field.metadata), None)
        self._members: dict[str, dataclasses.Field[Any]] = {}
        if self._family is not None:
            self._members = {row.name: row for row in dataclasses.fields(self._family.metadata["table"])}

    def __contains__(self, name: str) -> bool:
        return self.row(name) is not None

    def row(self, name: str) -> dataclasses.Field[Any] | None:
        """The row of that name."""
        return self._plain.get(name) or self._members.get(self._split(name)[1])

    def changed(self, values: Any, given: Mapping[str, Any]) -> Any:
        """A table with what of ``given`` is its own; names that are not are left out.

        Raises:
            ConfigurationError: a row does not accept its value, or the table does not accept them all together.
        """
        found = {name: self.row(name) for name in given}
        checked = {name: check(row, name, given[name]) for name, row in found.items() if row is not None}
        plain = {name: value for name, value in checked.items() if name in self._plain}
        if self._family is None:
            return dataclasses.replace(values, **plain)
        members = dict(getattr(values, self._family.name))
        for name in plain.get(self._prefix, ()):
            members.setdefault(name, self._family.metadata["table"]())
        for name in checked.keys() - plain.keys():
            member, row = self._split(name)
            before = members.get(member) or self._family.metadata["table"]()
            members[member] = dataclasses.replace(before, **{row: checked[name]})
        return dataclasses.replace(values, **plain, **{self._family.name: members})

    def flat(self, values: Any) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
        """Each parameter's row and value."""
        found = {name: (row, getattr(values, name)) for name, row in self._plain.items()}
        if self._family is not None:
            for member, table in getattr(values, self._family.name).items():
                for name, row in self._members.items():
                    found[f"{self._prefix}.{member}.{name}"] = row, getattr(table, name)
        return found

    def hint(self, name: str) -> str:
        """What there is in place of a name that is not."""
        close = difflib.get_close_matches(name, self._names(name), n=1)
        has = ", ".join([*self._plain, *(f"{self._prefix}.NAME.{other}" for other in self._members)])
        return (f" Did you mean '{close[0]}'?" if close else "") + f" It has: {has}."

    def nearness(self, name: str) -> float:
        """How much a name that is not there resembles the nearest one that is, 0 to 1."""
        return max(difflib.SequenceMatcher(None, name, other).ratio() for other in self._names(name))

    def _names(self, name: str) -> list[str]:
        """All names, those of a family's rows for the member that ``name`` has."""
        member, row = self._split(name)
        return [*self._plain, *(f"{self._prefix}.{member}.{other}" for other in self._members if row)]

    @property
    def _prefix(self) -> str:
        return str(self._family.metadata["family"]) if self._family is not None else ""

    def _split(self, name: str) -> tuple[str, str]:
        """Member and row of a family's parameter; empty of others."""
        found = re.fullmatch(rf"{self._prefix}\.(.*)\.(\w+)", name) if self._family is not None else None
        return (found[1], found[2]) if found else ("", "")


def check(row: dataclasses.Field[Any], name: str, value: Any) -> Any:
    """The value in the row's type.

    Raises:
        ConfigurationError: the row does not accept it.
    """
    kind: type[Any] = type(row.default)
    if kind is float and type(value) is int:
        value = float(value)
    if kind is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        value = tuple(value)
    low, high = row.metadata["at_least"], row.metadata["at_most"]
    choices = row.metadata["choices"]
    right = (
        type(value) is kind
        and (kind is not tuple or all(isinstance(item, str) for item in value))
        and (low is None or value >= low)
        and (high is None or value <= high)
        and (not choices or value in choices)
    )
    if not right:
        raise ConfigurationError(f"{name} cannot be {value!r}; it takes {accepted(row)}.")
    return value


def accepted(field: dataclasses.Field[Any]) -> str:
    """In words, what a row takes."""
    low, high = field.metadata["at_least"], field.metadata["at_most"]
    if field.metadata["choices"]:
        return "one of: " + ", ".join(field.metadata["choices"])
    words = _KINDS[type(field.default)]
    if low is not None and high is not None:
        return f"{words} from {low:g} to {high:g}"
    return f"{words} of at least {low:g}" if low is not None else words
