"""Parameters of a node, from its table: declaration, range, checks and documentation.

A change is checked as a whole and applied as a whole, or refused with a sentence. Of a family of rows, a member's are
declared when one of them is first set, or its name is first listed.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.exceptions import ParameterNotDeclaredException
from rclpy.node import Node
from rclpy.parameter import Parameter

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.nodes.parameters.table import Rows, accepted

Table = TypeVar("Table")

RCLPYS_OWN = ("use_sim_time", "start_type_description_service")


class Parameters(Generic[Table]):
    """A node's parameters, declared from its table and kept in step with it.

    Args:
        node: whose parameters they are; it allows undeclared ones if the table has a family.
        table: the dataclass.
        on_change: called with the whole new table before a change takes effect; what it raises refuses the
            change.
        told: names (``*`` for any part) of parameters by which the node itself tells something: a dump holds them,
            what is loaded of them is not heeded, and nobody else sets them.

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
        self._lock = threading.RLock()
        self._tells = False
        self._rows = Rows(table)
        self._on_change = on_change
        self.given = {name: value.value for name, value in node._parameter_overrides.items()}
        self.values: Table = self._rows.changed(table(), self.given)
        self._declare(self.values)
        node.add_pre_set_parameters_callback(self._prepare)
        node.add_on_set_parameters_callback(self._change)

    def knows(self, name: str) -> bool:
        """True for the table's own names, and for those that are rclpy's or the node's and stand in a dump."""
        return name in self._rows or name in RCLPYS_OWN or self._is_told(name) or name.startswith("qos_overrides.")

    def tell(self, name: str, value: Any, description: str) -> None:
        """Set a parameter by which the node tells something; from any thread."""
        descriptor = ParameterDescriptor(description=description, additional_constraints="The node itself sets it.")
        with self._telling():
            if self._node.has_parameter(name):
                self._node.undeclare_parameter(name)
            self._node.declare_parameter(name, value, descriptor, ignore_override=True)

    def nearness(self, name: str) -> float:
        """How much a name that is not the table's resembles the nearest one that is, 0 to 1."""
        return self._rows.nearness(name)

    def refuse(self, name: str, value: Any) -> None:
        """Say that the node has no such parameter.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(self._unknown(name, value))

    def _unknown(self, name: str, value: Any) -> str:
        return f"{self._node.get_name()} has no parameter '{name}' (value {value!r}).{self._rows.hint(name)}"

    def _is_told(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._told)

    def _prepare(self, changes: list[Parameter[Any]]) -> list[Parameter[Any]]:
        """50 is as good as 50.0 where a number is wanted; of unknown names rclpy would not say which they are."""
        for change in changes:
            if not self._node.has_parameter(change.name) and change.name not in self._rows:
                raise ParameterNotDeclaredException(self._unknown(change.name, change.value))
        return [self._as_wanted(change) for change in changes]

    def _as_wanted(self, change: Parameter[Any]) -> Parameter[Any]:
        """The change in its row's type where ROS could not know it: a whole number, a list of nothing."""
        default = getattr(self._rows.row(change.name), "default", None)
        if isinstance(default, float) and change.type_ == Parameter.Type.INTEGER:
            return Parameter(change.name, Parameter.Type.DOUBLE, float(change.value))
        if isinstance(default, tuple) and isinstance(change.value, Sequence) and not change.value:
            return Parameter(change.name, Parameter.Type.STRING_ARRAY, [])
        return change

    def _change(self, changes: list[Parameter[Any]]) -> SetParametersResult:
        given = {change.name: change.value for change in changes}
        with self._lock:
            if self._tells:
                return SetParametersResult(successful=True)
            try:
                for name in filter(self._is_told, given):
                    raise ConfigurationError(f"{name} is read-only: {self._node.get_name()} tells something by it.")
                if any(name in self._rows for name in given):  # not use_sim_time and the like
                    values = self._rows.changed(self.values, given)
                    self._on_change(values)
                    self.values = values
                    self._declare(values)
            except ConfigurationError as error:
                return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _declare(self, values: Table) -> None:
        """Declare what is not yet; of a family, the rows of members that are new."""
        with self._telling():
            for name, (row, value) in self._rows.flat(values).items():
                if not self._node.has_parameter(name):
                    value = list(value) if isinstance(value, tuple) else value
                    self._node.declare_parameter(name, value, _descriptor(row), ignore_override=True)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """What this thread sets meanwhile is the node's own; others wait."""
        with self._lock:
            self._tells = True
            try:
                yield
            finally:
                self._tells = False


def refuse_unknown(nodes: Sequence[Parameters[Any]]) -> None:
    """Refuse start parameters that no node would heed.

    In a process of several nodes a parameter given to all of them (``-p model:=...``) need only be known to
    one; given to one node alone, that one must know it. Of those that it was given to, the node refuses it that has a
    parameter of the most similar name.

    Raises:
        ConfigurationError: a parameter is unknown.
    """
    for node in nodes:
        for name, value in node.given.items():
            asked = [other for other in nodes if name in other.given and other.given[name] == value]
            if not any(other.knows(name) for other in asked):
                max(asked, key=lambda other: other.nearness(name)).refuse(name, value)


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
