"""Declares a node's ROS parameters from its table, checks changes, and documents them.

A change is checked and applied as a whole, or refused with a sentence. A table may have a family: the same parameters
for each of several names, such as ``tenant.NAME.model``. The family's parameters for a name are declared when one of
them is first set, or when the name is first listed.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.exceptions import ParameterNotDeclaredException
from rclpy.node import Node
from rclpy.parameter import Parameter

from split_infer_ros.errors import ConfigurationError, SplitInferError, error_sentence
from split_infer_ros.nodes.parameters.table import Rows
from split_infer_ros.nodes.ros_text import repaired
from split_infer_ros.runtime.text import repair_text
from split_infer_ros.setting import Setting

Table = TypeVar("Table")

RCLPY_PARAMETERS = ("use_sim_time", "start_type_description_service")


class Parameters(Generic[Table]):
    """A node's parameters, declared from its table.

    Args:
        node: the node. It must allow undeclared parameters if the table has a family.
        table: the dataclass of the parameters.
        on_change: called with the whole new table before a change takes effect. If it raises, the change is refused.
        status_parameters: names of parameters that only the node itself sets. In a name, ``*`` stands for any part.
            ``ros2 param dump`` writes these parameters too. A node that is started with such a file ignores them.

    Attributes:
        rows: the rows of the table.
        values: the table with the values in force.
        overrides: the values of the parameters with which the node was started, by name.
        status_parameters: names of parameters that only the node itself sets, as given above.

    Raises:
        ConfigurationError: the node was started with values that its table does not accept.
    """

    def __init__(
        self, node: Node, table: type[Table], on_change: Callable[[Table], None], status_parameters: Sequence[str] = ()
    ) -> None:
        self._node = node
        self.rows = Rows(table)
        self._on_change = on_change
        self.status_parameters = status_parameters
        self._lock = threading.RLock()
        self._is_declaring = False
        self.overrides = {name: override.value for name, override in node._parameter_overrides.items()}
        self.values: Table = self.rows.changed(table(), self.overrides)
        self._declare(self.values)
        node.add_pre_set_parameters_callback(self._prepare)
        node.add_on_set_parameters_callback(self._change)

    def recognises(self, name: str) -> bool:
        """Returns whether the node has a parameter of this name: from the table, from rclpy, or a status parameter."""
        is_builtin = name in RCLPY_PARAMETERS or name.startswith("qos_overrides.")
        return name in self.rows or is_builtin or self._is_status(name)

    def set_status(self, name: str, value: Any, description: str) -> None:
        """Sets a status parameter, which users cannot set. Any thread may call this.

        Args:
            name: the parameter's name.
            value: a value that a ROS parameter can have.
            description: what the parameter says, in a sentence.
        """
        descriptor = ParameterDescriptor(description=description, additional_constraints="The node itself sets it.")
        value = repaired(value)
        with self._declaring():
            if self._node.has_parameter(name):
                self._node.undeclare_parameter(name)
            self._node.declare_parameter(name, value, descriptor, ignore_override=True)

    def unknown(self, name: str, value: Any) -> str:
        """Returns a sentence that refuses a parameter that the node does not have."""
        return f"{self._node.get_name()} has no parameter '{name}' (value {value!r}).{self.rows.hint(name)}"

    def _is_status(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.status_parameters)

    def _prepare(self, changes: list[Parameter[Any]]) -> list[Parameter[Any]]:
        """Converts values to the types of their rows. Refuses unknown parameters by name, which rclpy would not do."""
        for change in changes:
            if not self._node.has_parameter(change.name) and change.name not in self.rows:
                raise ParameterNotDeclaredException(self.unknown(change.name, change.value))
        return [self._converted(change) for change in changes]

    def _converted(self, change: Parameter[Any]) -> Parameter[Any]:
        """Returns a change in its row's type. Only whole numbers for a float, and empty lists, need a conversion."""
        row = self.rows.row(change.name)
        default = row.setting.default if row is not None else None
        if isinstance(default, float) and change.type_ == Parameter.Type.INTEGER:
            return Parameter(change.name, Parameter.Type.DOUBLE, float(change.value))
        if isinstance(default, tuple) and isinstance(change.value, Sequence) and not change.value:
            return Parameter(change.name, Parameter.Type.STRING_ARRAY, [])
        return change

    def _change(self, parameters: list[Parameter[Any]]) -> SetParametersResult:
        changes = {parameter.name: parameter.value for parameter in parameters}
        with self._lock:
            if self._is_declaring:
                return SetParametersResult(successful=True)
            try:
                for name in filter(self._is_status, changes):
                    raise ConfigurationError(f"{name} is read-only: only {self._node.get_name()} itself sets it.")
                if any(name in self.rows for name in changes):  # use_sim_time and the like are not in the table
                    values = self.rows.changed(self.values, changes)
                    self._on_change(values)
                    self.values = values
                    self._declare(values)
            except Exception as error:  # an exception from this callback would end the process
                if not isinstance(error, SplitInferError):  # a fault of the package, which its sentence does not show
                    self._node.get_logger().error("".join(traceback.format_exception(error)))
                return SetParametersResult(successful=False, reason=repair_text(error_sentence(error)))
        return SetParametersResult(successful=True)

    def _declare(self, values: Table) -> None:
        """Declares the parameters that are new, such as the rows of a family for a new name."""
        with self._declaring():
            for name, (row, value) in self.rows.flat(values).items():
                if not self._node.has_parameter(name):
                    value = list(value) if isinstance(value, tuple) else value
                    self._node.declare_parameter(name, value, _descriptor(row.setting), ignore_override=True)

    @contextmanager
    def _declaring(self) -> Iterator[None]:
        """Lets this thread declare parameters without a check; other threads wait meanwhile."""
        with self._lock:
            self._is_declaring = True
            try:
                yield
            finally:
                self._is_declaring = False


def refuse_unknown(tables: Sequence[Parameters[Any]]) -> None:
    """Refuses start parameters that no node of the process has.

    If all nodes were given a parameter (``-p model:=...``), at least one of them must have it. If one node was given
    it, that node must have it. The error comes from the node that has the most similar parameter.

    Raises:
        ConfigurationError: a parameter is unknown.
    """
    for table in tables:
        for name, value in table.overrides.items():
            given_to = [other for other in tables if name in other.overrides and other.overrides[name] == value]
            if not any(other.recognises(name) for other in given_to):
                closest = max(given_to, key=lambda other: other.rows.similarity(name))
                raise ConfigurationError(closest.unknown(name, value))


def _descriptor(setting: Setting) -> ParameterDescriptor:
    descriptor = ParameterDescriptor(
        description=setting.description,
        additional_constraints=f"Takes {setting.accepted}.",
        read_only=setting.read_only,
        dynamic_typing=True,  # lets our own error refuse a wrong type, instead of rclpy's
    )
    low, high = setting.minimum, setting.maximum
    if low is not None and high is not None:
        if isinstance(setting.default, float):
            descriptor.floating_point_range = [FloatingPointRange(from_value=float(low), to_value=float(high))]
        else:
            descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high))]
    return descriptor
