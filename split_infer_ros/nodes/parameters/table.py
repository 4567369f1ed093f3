"""Tables of parameters: frozen dataclasses made of settings.

    @dataclass(frozen=True)
    class HeadParameters(NodeParameters):
        limits: Limits = part(Limits())
        transport: str = setting(INTRA_PROCESS, "How features come from the backbone.", read_only=True)

Each setting is a row, which becomes a parameter. The settings inside ``limits`` are rows as well. A table holds values
in the units of its fields; the parameters hold values in the units that users write.

ROS parameters hold no lists of records. A table may therefore have a family of rows: ``tenant.NAME.model`` for each
NAME in the list ``tenants``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import reduce
from inspect import get_annotations
from typing import Any, ClassVar

from split_infer_ros.setting import Setting, setting, settings_of

_PART = "part"
_FAMILY = "family"


@dataclass(frozen=True)
class Row:
    """One setting of a table, as a parameter.

    Attributes:
        name: the parameter's name.
        setting: the setting in the unit that users write.
        purpose: the parameter's heading in the reference.
        path: the names of the fields that lead from the table to the setting.
        of_field: the setting in the unit of the dataclass's field, such as seconds where users write milliseconds.
    """

    name: str
    setting: Setting
    purpose: str
    path: tuple[str, ...]
    of_field: Setting

    def value(self, table: Any) -> Any:
        """Returns the row's value in a table, in the form and unit that users write."""
        return self.of_field.to_user(reduce(getattr, self.path, table))


@dataclass(frozen=True)
class _Part:
    """How the rows of a table differ from the settings of a dataclass; see ``part``."""

    without: Collection[str] = ()
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_AS_IT_IS = _Part()


def part(default: Any, /, *, without: Collection[str] = (), **changes: Mapping[str, Any]) -> Any:
    """Returns a field that holds a dataclass. The dataclass's settings become rows of the table.

    Args:
        default: an instance of the dataclass. Its values are the rows' defaults.
        without: names of settings that do not become rows.
        changes: attributes of ``Setting`` that differ for a row, by the name of its field.
    """
    return field(default=default, metadata={_PART: _Part(without, changes)})


@dataclass(frozen=True)
class _Family:
    """Describes the field that holds a table's family; see ``family``."""

    names: str
    prefix: str
    table: type[Any]


def family(names: str, prefix: str, table: type[Any]) -> Any:
    """Returns a field that maps names to tables. The tables' rows are the parameters ``PREFIX.NAME.row``.

    Args:
        names: the name of the row that lists the names.
        prefix: the first part of the parameters' names. It differs from ``names``, because YAML cannot have a list and
            a table of the same name.
        table: the dataclass of each table.
    """
    return field(default_factory=dict, metadata={_FAMILY: _Family(names, prefix, table)})


@dataclass(frozen=True)
class NodeParameters:
    """The parameters that every node has."""

    PURPOSE: ClassVar[str] = "The node"

    autostart: bool = setting(
        True,
        "Whether the node configures and activates itself at its start; else the lifecycle services do.",
        read_only=True,
    )


class Rows:
    """Finds the rows of a table, and of its family, by the names of their parameters.

    Args:
        table: the table's dataclass. It can be made without arguments.
    """

    def __init__(self, table: type[Any]) -> None:
        self._plain_rows = {row.name: row for row in _rows_of(table(), purpose=getattr(table, "PURPOSE", ""))}
        metadata = {each.name: each.metadata for each in fields(table)}
        self._family_field = next((name for name, facts in metadata.items() if _FAMILY in facts), "")
        self._family_rows: dict[str, Row] = {}
        if self._family_field:
            self._family: _Family = metadata[self._family_field][_FAMILY]
            self._family_rows = {row.name: row for row in _rows_of(self._family.table())}

    def __contains__(self, name: str) -> bool:
        return self.row(name) is not None

    def row(self, name: str) -> Row | None:
        """Returns the row of a parameter; None if the table has no row of that name."""
        return self._plain_rows.get(name) or self._family_rows.get(self._split(name)[1])

    def changed(self, values: Any, changes: Mapping[str, Any]) -> Any:
        """Returns a copy of a table with changed values.

        Args:
            values: an instance of the table's dataclass.
            changes: new values as users write them, by the parameter's name. Unknown names are ignored.

        Raises:
            ConfigurationError: a row does not accept its value, or the table does not accept all values together.
        """
        of_table: _Changes = {}
        of_family: dict[str, _Changes] = {}
        for name, value in changes.items():
            row = self.row(name)
            if row is not None:
                found = of_table if name in self._plain_rows else of_family.setdefault(self._split(name)[0], {})
                found[row.path] = row.of_field.from_user(row.setting.check(name, value))
        if self._family_field:
            tables = dict(getattr(values, self._family_field))
            listed = of_table.get((self._family.names,), ())
            for key in (*listed, *of_family):
                tables[key] = _replaced(tables.get(key) or self._family.table(), of_family.get(key, {}))
            of_table[self._family_field,] = tables
        return _replaced(values, of_table)

    def flat(self, values: Any) -> dict[str, tuple[Row, Any]]:
        """Returns the row and the value of each parameter in a table, by the parameter's full name."""
        found = {name: (row, row.value(values)) for name, row in self._plain_rows.items()}
        if self._family_field:
            for key, table in getattr(values, self._family_field).items():
                for name, row in self._family_rows.items():
                    found[f"{self._prefix}.{key}.{name}"] = row, row.value(table)
        return found

    def hint(self, name: str) -> str:
        """Returns sentences about an unknown name: which name the user may have meant, and which names exist."""
        close = difflib.get_close_matches(name, self._names(name), n=1)
        existing = ", ".join([*self._plain_rows, *(f"{self._prefix}.NAME.{row}" for row in self._family_rows)])
        return (f" Did you mean '{close[0]}'?" if close else "") + f" It has: {existing}."

    def similarity(self, name: str) -> float:
        """Returns how similar an unknown name is to the most similar name that exists, from 0 to 1."""
        return max(difflib.SequenceMatcher(None, name, other).ratio() for other in self._names(name))

    def _names(self, name: str) -> list[str]:
        """Returns all names. The family's names have the same key as ``name``; without a key, they are left out."""
        key, row_name = self._split(name)
        return [*self._plain_rows, *(f"{self._prefix}.{key}.{row}" for row in self._family_rows if row_name)]

    @property
    def _prefix(self) -> str:
        return self._family.prefix if self._family_field else ""

    def _split(self, name: str) -> tuple[str, str]:
        """Splits the name of a family's parameter into its key and its row; returns two empty texts for other names."""
        match = re.fullmatch(rf"{self._prefix}\.(.*)\.(\w+)", name) if self._family_field else None
        return (match[1], match[2]) if match else ("", "")


_Changes = dict[tuple[str, ...], Any]  # maps a field's path (see ``Row``) to its new value


def _replaced(values: Any, changes: _Changes) -> Any:
    """Returns a changed copy of nested dataclasses. Each is made once, so that it can check its values together."""
    by_field: dict[str, _Changes] = {}
    for (name, *rest), value in changes.items():
        by_field.setdefault(name, {})[tuple(rest)] = value
    return replace(
        values,
        **{
            name: found[()] if () in found else _replaced(getattr(values, name), found)
            for name, found in by_field.items()
        },
    )


def _rows_of(
    values: Any, path: tuple[str, ...] = (), purpose: str = "", differences: _Part = _AS_IT_IS
) -> Iterator[Row]:
    """Yields the rows of a dataclass's instance and of the instances inside it. Their values are the rows' defaults.

    The fields that a dataclass declares itself come first, then those that it inherits.
    """
    found, by_name = settings_of(values), {each.name: each for each in fields(values)}
    declared = dict.fromkeys(name for each in type(values).__mro__ for name in get_annotations(each))
    for name in declared:
        if name not in by_name or name in differences.without:
            continue
        value, heading = getattr(values, name), _purpose(type(values), name) or purpose
        if name in found:
            of_field = replace(found[name], **differences.changes.get(name, {}))
            parameter, of_users = of_field.of_users(name)
            of_users = replace(of_users, default=of_field.to_user(value))
            yield Row(parameter, of_users, of_field.purpose or heading, (*path, name), of_field)
        elif is_dataclass(value):
            yield from _rows_of(value, (*path, name), heading, by_name[name].metadata.get(_PART, _AS_IT_IS))


def _purpose(kind: type[Any], name: str) -> str:
    """Returns the purpose of the base class that first declared a field; empty if that class has no purpose."""
    declaring = next(each for each in reversed(kind.__mro__) if name in get_annotations(each))
    return str(vars(declaring).get("PURPOSE", ""))
