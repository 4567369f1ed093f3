"""The base class of the nodes: it has a lifecycle and a table of parameters, and logs errors as sentences."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from split_infer_ros.errors import ConfigurationError, error_sentence
from split_infer_ros.nodes.endpoints import create_steady_timer
from split_infer_ros.nodes.parameters.declaration import Parameters
from split_infer_ros.nodes.parameters.table import NodeParameters
from split_infer_ros.nodes.process_exit import DeviceLoss
from split_infer_ros.nodes.ros_text import TextLogger
from split_infer_ros.runtime.faults import is_sticky
from split_infer_ros.telemetry.trace import TraceFile

LOG_PERIOD_S = 5.0
DRAIN_S = 2.0
LOST_DRAIN_S = 0.5  # used instead of DRAIN_S after the GPU was lost, because the process is about to end

Table = TypeVar("Table", bound=NodeParameters)
Made = TypeVar("Made")


class ManagedNode(LifecycleNode, Generic[Table]):
    """A lifecycle node. Subclasses say what each transition does.

    Args:
        name: the node's name.
        table: the dataclass of the node's parameters.
        status_parameters: names of further parameters, which only the node itself sets.

    Attributes:
        is_active: whether the node is in the state ``active``.
        table: the declared parameters.
        device_loss: says whether this process can no longer use the GPU. Ends the process in that case.
        failure: the error of the latest transition that failed; None if none failed. ``start_nodes`` sets it to None
            before each transition.
    """

    def __init__(
        self, name: str, table: type[Table], status_parameters: Sequence[str] = (), **node_arguments: Any
    ) -> None:
        super().__init__(name, **node_arguments)
        self.is_active = False
        self.device_loss = DeviceLoss(self.get_logger(), self.report_device_loss)
        self.failure: Exception | None = None
        self.table = Parameters(self, table, self._accept, status_parameters)
        self._cleanups: list[Callable[[], object]] = []

    def get_logger(self) -> TextLogger:
        return self._text_logger

    @cached_property
    def _text_logger(self) -> TextLogger:
        return TextLogger(super().get_logger().name)

    @property
    def values(self) -> Table:
        """The parameters in force."""
        return self.table.values

    def configure(self) -> None:
        """Loads models, allocates memory and creates publishers. Registers with ``add_cleanup`` how each is freed."""

    def activate(self) -> None:
        """Starts the node's work."""

    def deactivate(self) -> None:
        """Finishes the work in flight, and ends the node's work."""

    def apply(self, values: Table) -> None:
        """Applies new parameters while the node is configured.

        Raises:
            ConfigurationError: the parameters are refused, and nothing has changed.
        """

    def report_device_loss(self) -> None:
        """Publishes at once that the GPU was lost. ``device_loss.sentence`` says why. Any thread may call this."""

    def add_cleanup(self, cleanup: Callable[[], object]) -> None:
        """Registers a function that the node's clean-up calls. The function registered last runs first."""
        self._cleanups.append(cleanup)

    def call_every(self, period_s: float, callback: Callable[[], None]) -> None:
        """Calls a function every ``period_s`` seconds of the steady clock, until the node's clean-up."""
        timer = create_steady_timer(self, period_s, callback)
        self.add_cleanup(lambda: self.destroy_timer(timer))

    @property
    def drain_s(self) -> float:
        """How many seconds heads may take to finish when the node is deactivated."""
        return LOST_DRAIN_S if self.device_loss.sentence else DRAIN_S

    def close(self) -> None:
        """Deactivates and cleans up from any state, then destroys the node."""
        try:
            if self.is_active:
                self._deactivate()
            self._clean_up()
        finally:
            self.destroy_node()

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._attempt(self.configure, on_refusal=self._clean_up)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        result = self._attempt(self.activate, on_refusal=self._undo_activation)
        self.is_active = result == TransitionCallbackReturn.SUCCESS
        return super().on_activate(state) if self.is_active else result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._attempt(self._deactivate)  # an error is logged; the node stops working in any case
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._clean_up()
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        if self.is_active:
            self._attempt(self._deactivate)
        self._clean_up()
        return TransitionCallbackReturn.SUCCESS

    def warn(self, error: Exception) -> None:
        """Logs an error while frames flow, at most once in ``LOG_PERIOD_S``. If the GPU is lost, the process ends."""
        if is_sticky(error):
            self.device_loss.declare(error)
        else:
            self.get_logger().warning(error_sentence(error), throttle_duration_sec=LOG_PERIOD_S)

    def _deactivate(self) -> None:
        self.is_active = False
        self.deactivate()

    def _undo_activation(self) -> None:
        try:
            self.deactivate()
        except Exception as error:  # some parts were not started yet
            self._log_failure(error)

    def _clean_up(self) -> None:
        """Calls all registered clean-ups. If one fails, the error is logged and the others follow."""
        while self._cleanups:
            try:
                self._cleanups.pop()()
            except Exception as error:
                self._log_failure(error)

    def _log_failure(self, error: Exception) -> None:
        self.get_logger().error(error_sentence(error))
        if not isinstance(error, ConfigurationError):
            self.get_logger().debug(traceback.format_exc())

    def _accept(self, values: Table) -> None:
        if self._cleanups:  # the node is configured
            self.apply(values)

    def _attempt(
        self, transition: Callable[[], None], on_refusal: Callable[[], None] = lambda: None
    ) -> TransitionCallbackReturn:
        try:
            transition()
        except Exception as error:
            if is_sticky(error):
                self.device_loss.declare(error)
            self.failure = error
            self._log_failure(error)
            on_refusal()
            return TransitionCallbackReturn.FAILURE
        return TransitionCallbackReturn.SUCCESS


def start_nodes(nodes: Sequence[ManagedNode[Any]]) -> None:
    """Configures and activates the nodes whose parameter ``autostart`` is true.

    Nodes are configured in reverse order: the backbone may compare engines, and the head then takes the fastest one.
    Nodes are activated in the given order, receivers before senders.

    Raises:
        ConfigurationError: a node could not be configured or activated.
        Exception: any other error of a transition.
    """
    starting = [node for node in nodes if node.values.autostart]
    configured = [node for node in reversed(starting) if _start(node, node.trigger_configure)]
    for node in reversed(configured):
        _start(node, node.trigger_activate)


def _start(node: ManagedNode[Any], trigger: Callable[[], TransitionCallbackReturn]) -> bool:
    """Triggers a transition when the process starts; returns whether it succeeded. Raises the node's own error."""
    node.failure = None
    result = trigger()
    if node.failure is not None:
        raise node.failure
    return result == TransitionCallbackReturn.SUCCESS


def log_changes(node: ManagedNode[Any], before: Mapping[str, object], after: Mapping[str, object]) -> None:
    """Logs one line with the old and new values of what changed. Logs nothing if nothing changed.

    Args:
        node: the node that logs.
        before, after: the old and the new values, by name.
    """
    changed = [name for name in before if before[name] != after[name]]
    if changed:
        changes = [f"{name} changes from {before[name]} to {after[name]}" for name in changed]
        node.get_logger().info(f"{', '.join(changes)}.")


def configured(made: Made | None, node: str) -> Made:
    """Returns a thing that a node makes when it is configured, or raises an error if the node has not made it.

    Args:
        made: the thing; None while the node is not configured.
        node: a text that names the node, as the beginning of the error's sentence.

    Raises:
        ConfigurationError: the node is not configured.
    """
    if made is None:
        raise ConfigurationError(f"{node} is not configured yet.")
    return made


def open_trace(node: ManagedNode[Any], path: str) -> TraceFile | None:
    """Opens the trace file at ``path``; the node's clean-up closes it. Returns None for an empty path.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    if not path:
        return None
    trace = TraceFile.open(Path(path))
    node.add_cleanup(trace.close)
    return trace
