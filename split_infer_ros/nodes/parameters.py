"""Parameters: a node's table is a frozen dataclass; from it come declaration, range, checks and documentation.

    @dataclass(frozen=True)
    class HeadParameters:
        score_threshold: float = parameter(0.5, "Scores below it are dropped.", at_least=0.0, at_most=1.0)

A change is checked as a whole and applied as a whole, or refused with a sentence.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.exceptions import ParameterNotDeclaredException
from rclpy.node import Node
from rclpy.parameter import Parameter

from split_infer_ros.errors import ConfigurationError

Table = TypeVar("Table")

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", tuple: "a list of texts"}


RCLPYS_OWN = ("use_sim_time", "start_type_description_service")


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


class Parameters(Generic[Table]):
    """A node's parameters, declared from its table and kept in step with it.

    Args:
        node: whose parameters they are.
        table: the dataclass.
        on_change: called with the whole new table before a change takes effect; what it raises refuses the
            change.
        told: names of parameters by which the node itself tells something: a dump holds them, and what is loaded
            of them is not heeded.

    Attributes:
        values: the table in force.
        given: the parameters with which the node was started.

    Raises:
        ConfigurationError: the node was started with values that its table does not accept.
    """

    def __init__(
        self, node: Node, table: type[Table], on_change: Callable[[Table], None], told: Sequence[str] = ()
    ) -> None:
        self._node = node
        self._told = told
        self._fields = {field.name: field for field in dataclasses.fields(table)}  # type: ignore[arg-type]
        self._on_change = on_change
        self.given = {name: value.value for name, value in node._parameter_overrides.items()}
        ours = self._ours(self.given)
        self.values: Table = table(**{name: self._check(self._fields[name], self.given[name]) for name in ours})
        for name, field in self._fields.items():
            node.declare_parameter(
                name, _as_ros(getattr(self.values, name)), _descriptor(field), ignore_override=True
            )
        node.add_pre_set_parameters_callback(self._prepare)
        node.add_on_set_parameters_callback(self._change)

    def knows(self, name: str) -> bool:
        """True for the table's own names, and for those that are rclpy's or the node's and stand in a dump."""
        return name in self._fields or name in (*RCLPYS_OWN, *self._told) or name.startswith("qos_overrides.")

    def refuse(self, name: str, value: Any) -> None:
        """Say that the node has no such parameter.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(self._unknown(name, value))

    def _unknown(self, name: str, value: Any) -> str:
        close = difflib.get_close_matches(name, self._fields, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        return (
            f"{self._node.get_name()} has no parameter '{name}' (value {value!r}).{hint} "
            f"It has: {', '.join(self._fields)}."
        )

    def _ours(self, given: Mapping[str, Any]) -> list[str]:
        return [name for name in given if name in self._fields]

    def _prepare(self, changes: list[Parameter[Any]]) -> list[Parameter[Any]]:
        """50 is as good as 50.0 where a number is wanted; of unknown names rclpy would not say which they are."""
        for change in changes:
            if not self._node.has_parameter(change.name):
                raise ParameterNotDeclaredException(self._unknown(change.name, change.value))
        return [
            Parameter(change.name, Parameter.Type.DOUBLE, float(change.value))
            if change.name in self._fields
            and isinstance(self._fields[change.name].default, float)
            and change.type_ == Parameter.Type.INTEGER
            else change
            for change in changes
        ]

    def _change(self, changes: list[Parameter[Any]]) -> SetParametersResult:
        given = {change.name: change.value for change in changes}
        ours = self._ours(given)
        if not ours:  # use_sim_time and the like
            return SetParametersResult(successful=True)
        try:
            checked = {name: self._check(self._fields[name], given[name]) for name in ours}
            values = dataclasses.replace(self.values, **checked)  # type: ignore[type-var]
            self._on_change(values)
        except ConfigurationError as error:
            return SetParametersResult(successful=False, reason=str(error))
        self.values = values
        return SetParametersResult(successful=True)

    @staticmethod
    def _check(field: dataclasses.Field[Any], value: Any) -> Any:
        """The value in the table's type, if the row accepts it."""
        kind: type[Any] = type(field.default)
        if kind is float and type(value) is int:
            value = float(value)
        if kind is tuple and isinstance(value, list):
            value = tuple(value)
        low, high = field.metadata["at_least"], field.metadata["at_most"]
        choices = field.metadata["choices"]
        right = (
            type(value) is kind
            and (kind is not tuple or all(isinstance(item, str) for item in value))
            and (low is None or value >= low)
            and (high is None or value <= high)
            and (not choices or value in choices)
        )
        if not right:
            raise ConfigurationError(f"{field.name} cannot be {value!r}; it takes {accepted(field)}.")
        return value


def refuse_unknown(nodes: Sequence[Parameters[Any]]) -> None:
    """Refuse start parameters that no node would heed.

    In a process of several nodes a parameter given to all of them (``-p model:=...``) need only be known to
    one; given to one node alone, that one must know it.

    Raises:
        ConfigurationError: a parameter is unknown.
    """
    for node in nodes:
        for name, value in node.given.items():
            heeded = any(other.knows(name) and name in other.given and other.given[name] == value for other in nodes)
            if not heeded:
                node.refuse(name, value)


def accepted(field: dataclasses.Field[Any]) -> str:
    """In words, what a row takes."""
    low, high = field.metadata["at_least"], field.metadata["at_most"]
    if field.metadata["choices"]:
        return "one of: " + ", ".join(field.metadata["choices"])
    words = _KINDS[type(field.default)]
    if low is not None and high is not None:
        return f"{words} from {low:g} to {high:g}"
    return f"{words} of at least {low:g}" if low is not None else words


def _as_ros(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _descriptor(field: dataclasses.Field[Any]) -> ParameterDescriptor:
    facts = field.metadata
    descriptor = ParameterDescriptor(
        description=facts["description"],
        additional_constraints=f"Takes {accepted(field)}.",
        read_only=facts["read_only"],
        dynamic_typing=True,  # so that a wrong type is refused by our sentence, not by rclpy's
    )
    low, high = facts["at_least"], facts["at_most"]
    if low is not None and high is not None:
        if isinstance(field.default, float):
            descriptor.floating_point_range = [FloatingPointRange(from_value=float(low), to_value=float(high))]
        else:
            descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high))]
    return descriptor
