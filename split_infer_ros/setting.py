"""Settings: dataclass fields that also say what a user may choose.

    @dataclass(frozen=True)
    class Limits:
        score_threshold: float = setting(0.5, "Detections with a lower score are dropped.", minimum=0.0, maximum=1.0)

The nodes' parameters and the reference pages are made from these fields. A field and its parameter may have different
units: the field ``batch_timeout_s`` is the parameter ``batch_timeout_ms``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from fractions import Fraction
from typing import Any, NamedTuple

from split_infer_ros.errors import ConfigurationError

COMPUTING, LOADING = "Where and how it computes", "Loading models"  # purposes that several dataclasses share

_KEY = "setting"
_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", tuple: "a list of texts"}


class Unit(NamedTuple):
    """A unit in which users give a number.

    Attributes:
        suffix: the end of the names that users write, such as ``_ms``.
        field_suffix: the end of the field's name, which names the field's unit, such as ``_s``.
        size: the size of the users' unit in the field's unit, such as 1/1000.
    """

    suffix: str
    field_suffix: str
    size: Fraction


MILLISECONDS = Unit("_ms", "_s", Fraction(1, 1000))
MEGABYTES = Unit("_mb", "_bytes", Fraction(10**6))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is known of a setting: its default, its range, its description and so on.

    Attributes:
        default: the value if the user sets none. Its type is the type of all values.
        description: what the setting does, in sentences for users and in their unit.
        minimum, maximum: the range, in the unit of the field; None for no bound.
        choices: the accepted values; empty if all values of the type are accepted.
        unit: the users' unit; None if it is the field's unit.
        name: the users' name; empty if it follows from the field's name and the unit.
        read_only: True if the setting cannot change while models are loaded.
        purpose: the heading in the reference; empty for the heading of the dataclass.
    """

    default: Any
    description: str
    minimum: float | None = None
    maximum: float | None = None
    choices: Sequence[Any] = ()
    unit: Unit | None = None
    name: str = ""
    read_only: bool = False
    purpose: str = ""

    @property
    def accepted(self) -> str:
        """A phrase that says which values are accepted."""
        if self.choices:
            return f"one of: {', '.join(map(str, self.choices))}"
        words = _TYPE_NAMES[type(self.default)]
        if self.minimum is not None and self.maximum is not None:
            words += f" from {self.minimum:g} to {self.maximum:g}"
        elif self.minimum is not None:
            words += f" of at least {self.minimum:g}"
        return f"{words}, or inf for no limit" if self._may_be_unlimited else words

    def check(self, name: str, value: Any) -> Any:
        """Returns the value in the setting's type. A whole number may stand for a fraction, and a list for a tuple.

        Args:
            name: the setting's name, for the error.
            value: the value from the user.

        Raises:
            ConfigurationError: the value is not accepted.
        """
        kind = type(self.default)
        if kind is float and type(value) is int:
            value = float(value)
        if kind is tuple and isinstance(value, Sequence) and not isinstance(value, str):
            value = tuple(value)
        is_accepted = (
            type(value) is kind
            and (kind is not tuple or all(isinstance(item, str) for item in value))
            and (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum or (self._may_be_unlimited and value == math.inf))
            and (not self.choices or value in self.choices)
        )
        if not is_accepted:
            raise ConfigurationError(f"{name} cannot be {value!r}; it takes {self.accepted}.")
        return value

    def of_users(self, name: str) -> tuple[str, Setting]:
        """Returns the users' name of a field, and its setting as users see it.

        In the returned setting, members of an enumeration are texts, numbers are in the users' unit, and 0 means no
        limit.
        """
        if self.unit is not None:
            name = name.removesuffix(self.unit.field_suffix) + self.unit.suffix
        values = {key: self.to_user(getattr(self, key)) for key in ("default", "minimum", "maximum")}
        choices = tuple(map(self.to_user, self.choices))
        return self.name or name, replace(self, **values, choices=choices, unit=None)

    def to_user(self, value: Any) -> Any:
        """Returns a value of the field as users write it. If infinity means no limit for this setting, it becomes 0."""
        if isinstance(value, Enum):
            return value.value
        if self._may_be_unlimited and value == math.inf:
            return 0.0
        if self.unit is None or value is None:
            return value
        return float(f"{value * self.unit.size.denominator / self.unit.size.numerator:.15g}")  # 33.3, not 33.29999...

    def from_user(self, value: Any) -> Any:
        """Returns a user's value in the form and unit of the field. The value must be one that ``check`` accepts."""
        if self._may_be_unlimited and value == 0:
            return math.inf
        if self.unit is not None:
            value = value * self.unit.size.numerator / self.unit.size.denominator
        return type(self.default)(value)

    @property
    def _may_be_unlimited(self) -> bool:
        return isinstance(self.default, float) and math.isinf(self.default)


def setting(default: Any, description: str, **facts: Any) -> Any:
    """Returns a dataclass field that is a setting.

    Args:
        default: see ``Setting``. If it is a member of an enumeration, the choices are all members.
        description: see ``Setting``.
        facts: other attributes of ``Setting``.
    """
    if isinstance(default, Enum):
        facts = {"choices": tuple(type(default)), **facts}
    return _field(Setting(default=default, description=description, **facts))


def like(table: type[Any], name: str, /, **changes: Any) -> Any:
    """Returns a dataclass field with a copy of a setting of another dataclass.

    Args:
        table: the other dataclass.
        name: the name of the field there.
        changes: attributes of ``Setting`` that differ in the copy, such as ``default``.
    """
    return _field(replace(settings_of(table)[name], **changes))


def settings_of(table: Any) -> dict[str, Setting]:
    """Returns the settings of a dataclass, or of an instance of it, by field name."""
    return {each.name: each.metadata[_KEY] for each in fields(table) if _KEY in each.metadata}


def given_settings(table: type[Any], values: Any) -> list[str]:
    """Returns which of a dataclass's fields are not at their defaults in an instance of it, or of a subclass."""
    return [each.name for each in fields(table) if getattr(values, each.name) != each.default]


def check_settings(values: Any, prefix: str = "") -> None:
    """Checks the settings of an instance of a dataclass.

    Args:
        values: the instance.
        prefix: the text before the names of fields in the error.

    Raises:
        ConfigurationError: a value is not accepted.
    """
    for name, found in settings_of(values).items():
        found.check(prefix + name, getattr(values, name))


def _field(found: Setting) -> Any:
    return field(default=found.default, metadata={_KEY: found})
