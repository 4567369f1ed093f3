"""Tables of parameters: frozen dataclasses whose fields are rows with all that is known of a parameter.

    @dataclass(frozen=True)
    class HeadParameters(NodeParameters):
        score_threshold: float = parameter(0.5, "Detections with a lower score are left out.", minimum=0.0, maximum=1.0)

ROS parameters hold no lists of records. A table may therefore have a family of rows: ``tenant.NAME.model`` for each
NAME in the list ``tenants``.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from split_infer_ros.errors import ConfigurationError

_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", tuple: "a list of texts"}


def parameter(
    default: Any,
    description: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
    read_only: bool = False,
) -> Any:
    """Returns a row of a node's table: a dataclass field with all that ROS and users need to know of it."""
    metadata = {
        "description": description,
        "minimum": minimum,
        "maximum": maximum,
        "choices": tuple(choices),
        "read_only": read_only,
    }
    return dataclasses.field(default=default, metadata=metadata)


def like(table: type[Any], name: str, **changes: Any) -> Any:
    """Returns a copy of another table's row with changed arguments of ``parameter``, such as ``default``."""
    row = table.__dataclass_fields__[name]
    return parameter(**{"default": row.default, **row.metadata, **changes})


def family(names: str, prefix: str, table: type[Any]) -> Any:
    """Returns a field that maps names to tables, whose rows are the parameters ``PREFIX.NAME.row``.

    Args:
        names: the row that lists the names.
        prefix: the first part of the parameters. It differs from ``names``, because YAML cannot have a list and a
            table of the same name.
        table: the table of each name.
    """
    return dataclasses.field(default_factory=dict, metadata={"family": names, "prefix": prefix, "table": table})


@dataclasses.dataclass(frozen=True)
class NodeParameters:
    """The parameters of every node."""

    PURPOSE: ClassVar[str] = "The node"

    autostart: bool = parameter(
        True,
        "Whether the node configures and activates itself at its start; else the lifecycle services do.",
        read_only=True,
    )


class Rows:
    """The rows of a table by the names of their parameters, with the rows of its family.

    Args:
        table: the dataclass.
    """

    def __init__(self, table: type[Any]) -> None:
        fields = dataclasses.fields(table)
        self._plain_rows = {field.name: field for field in fields if "family" not in field.metadata}
        self._family = next((field for field in fields if "family" in field.metadata), None)
        self._family_rows: dict[str, dataclasses.Field[Any]] = {}
        if self._family is not None:
            self._family_rows = {row.name: row for row in dataclasses.fields(self._family.metadata["table"])}

    def __contains__(self, name: str) -> bool:
        return self.row(name) is not None

    def row(self, name: str) -> dataclasses.Field[Any] | None:
        """Returns the row of a parameter; None if the table has none of that name."""
        return self._plain_rows.get(name) or self._family_rows.get(self._split(name)[1])

    def changed(self, values: Any, changes: Mapping[str, Any]) -> Any:
        """Returns a copy of a table with changed values. Names that are not in the table are left out.

        Raises:
            ConfigurationError: a row does not accept its value, or the table does not accept them all together.
        """
        rows = {name: self.row(name) for name in changes}
        checked = {name: check(row, name, changes[name]) for name, row in rows.items() if row is not None}
        plain = {name: value for name, value in checked.items() if name in self._plain_rows}
        if self._family is None:
            return dataclasses.replace(values, **plain)
        new_table = self._family.metadata["table"]
        tables = dict(getattr(values, self._family.name))
        for key in plain.get(self._family.metadata["family"], ()):
            tables.setdefault(key, new_table())
        for name in checked.keys() - plain.keys():
            key, row_name = self._split(name)
            before = tables.get(key) or new_table()
            tables[key] = dataclasses.replace(before, **{row_name: checked[name]})
        return dataclasses.replace(values, **plain, **{self._family.name: tables})

    def flat(self, values: Any) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
        """Returns the row and the value of each parameter by its full name."""
        found = {name: (row, getattr(values, name)) for name, row in self._plain_rows.items()}
        if self._family is not None:
            for key, table in getattr(values, self._family.name).items():
                for name, row in self._family_rows.items():
                    found[f"{self._prefix}.{key}.{name}"] = row, getattr(table, name)
        return found

    def hint(self, name: str) -> str:
        """Returns sentences that tell what the user may have meant by an unknown name, and which names exist."""
        close = difflib.get_close_matches(name, self._names(name), n=1)
        existing = ", ".join([*self._plain_rows, *(f"{self._prefix}.NAME.{row}" for row in self._family_rows)])
        return (f" Did you mean '{close[0]}'?" if close else "") + f" It has: {existing}."

    def similarity(self, name: str) -> float:
        """Returns how similar an unknown name is to the most similar existing one, from 0 to 1."""
        return max(difflib.SequenceMatcher(None, name, other).ratio() for other in self._names(name))

    def _names(self, name: str) -> list[str]:
        """Returns all names; those of the family's rows with the key that ``name`` has."""
        key, row_name = self._split(name)
        return [*self._plain_rows, *(f"{self._prefix}.{key}.{row}" for row in self._family_rows if row_name)]

    @property
    def _prefix(self) -> str:
        return str(self._family.metadata["prefix"]) if self._family is not None else ""

    def _split(self, name: str) -> tuple[str, str]:
        """Returns the key and the row of a family's parameter; two empty texts for other names."""
        match = re.fullmatch(rf"{self._prefix}\.(.*)\.(\w+)", name) if self._family is not None else None
        return (match[1], match[2]) if match else ("", "")


def check(row: dataclasses.Field[Any], name: str, value: Any) -> Any:
    """Returns the value in the row's type.

    Raises:
        ConfigurationError: the row does not accept it.
    """
    row_type: type[Any] = type(row.default)
    if row_type is float and type(value) is int:
        value = float(value)
    if row_type is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        value = tuple(value)
    minimum, maximum = row.metadata["minimum"], row.metadata["maximum"]
    choices = row.metadata["choices"]
    is_accepted = (
        type(value) is row_type
        and (row_type is not tuple or all(isinstance(item, str) for item in value))
        and (minimum is None or value >= minimum)
        and (maximum is None or value <= maximum)
        and (not choices or value in choices)
    )
    if not is_accepted:
        raise ConfigurationError(f"{name} cannot be {value!r}; it takes {accepted_values(row)}.")
    return value


def accepted_values(row: dataclasses.Field[Any]) -> str:
    """Returns in words which values a row accepts."""
    minimum, maximum = row.metadata["minimum"], row.metadata["maximum"]
    if row.metadata["choices"]:
        return "one of: " + ", ".join(row.metadata["choices"])
    type_name = _TYPE_NAMES[type(row.default)]
    if minimum is not None and maximum is not None:
        return f"{type_name} from {minimum:g} to {maximum:g}"
    return f"{type_name} of at least {minimum:g}" if minimum is not None else type_name
