"""What the nodes have in common: a lifecycle, a table of parameters, and errors as sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.timer import Timer

from split_infer_ros.errors import ConfigurationError, SplitInferError
from split_infer_ros.nodes.parameters.declaration import Parameters
from split_infer_ros.runtime.faults import is_sticky
from split_infer_ros.runtime.shortage import summarize_error
from split_infer_ros.telemetry.trace import TraceFile

LOG_PERIOD_S = 5.0


class ManagedNode(LifecycleNode):
    """A lifecycle node whose subclasses say what each transition does.

    Args:
        name: of the node.
        table: the dataclass of its parameters; has ``autostart``.
        told: names of parameters by which the node tells something, beside its table.
    """

    def __init__(self, name: str, table: type[Any], told: Sequence[str] = (), **node_arguments: Any) -> None:
        super().__init__(name, **node_arguments)
        self.is_active = False
        self.table = Parameters(self, table, self._accept, told)
        self._steady_clock = Clock(clock_type=ClockType.STEADY_TIME)
        self._undo: list[Callable[[], object]] = []
        self._when_lost: Callable[[], None] = lambda: None
        self._end_process: Callable[[], None] = lambda: None
        self.loss = ""  # why the GPU does nothing more for this process

    @property
    def values(self) -> Any:
        """The parameters in force."""
        return self.table.values

    def set_up(self) -> None:
        """Configure: allocate and load. Register with ``self.on_tear_down`` how each piece is given back."""

    def begin(self) -> None:
        """Activate."""

    def end(self) -> None:
        """Deactivate: finish what is under way."""

    def change(self, values: Any) -> None:
        """New parameters while configured; raise ConfigurationError to refuse them, having changed nothing."""

    def say_lost(self) -> None:
        """Tell others at once that the GPU was lost, as ``self.loss`` has it; called on any thread."""

    def when_lost(self, callback: Callable[[], None], end_process: Callable[[], None]) -> None:
        """Once the GPU does nothing more for this process, call ``callback``; ``end_process`` when that was told."""
        self._when_lost, self._end_process = callback, end_process

    def on_tear_down(self, undo: Callable[[], object]) -> None:
        """Have ``undo`` called at clean-up, last registered first."""
        self._undo.append(undo)

    def every(self, period_s: float, callback: Callable[[], None]) -> Timer:
        """A timer by the steady clock: simulated time may stand still, jump, or never come."""
        return self.create_timer(period_s, callback, clock=self._steady_clock)

    def start(self) -> None:
        """Configure and activate, as the parameter ``autostart`` has it.

        Raises:
            ConfigurationError: the node could not be configured.
        """
        if not self.values.autostart:
            return
        self._failure: Exception | None = None
        if self.trigger_configure() == TransitionCallbackReturn.SUCCESS:
            self.trigger_activate()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Deactivate and clean up from whichever state, then leave ROS."""
        try:
            if self.is_active:
                self._deactivate()
            self._tear_down()
        finally:
            self.destroy_node()

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._attempt(self.set_up, undo=self._tear_down)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        result = self._attempt(self.begin)
        self.is_active = result == TransitionCallbackReturn.SUCCESS
        return result if not self.is_active else super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._deactivate()
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._tear_down()
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        if self.is_active:
            self._deactivate()
        self._tear_down()
        return TransitionCallbackReturn.SUCCESS

    def warn(self, error: Exception) -> None:
        """Log what went wrong while frames flow, at most once every few seconds. A lost GPU ends the process."""
        if is_sticky(error):
            self.lose_device(error)
        else:
            self.get_logger().warning(in_words(error), throttle_duration_sec=LOG_PERIOD_S)

    def lose_device(self, error: Exception) -> None:
        """The GPU does nothing more for this process: log it, have the process end, and tell others."""
        if self.loss:
            return
        self.loss = f"The GPU is lost to this process, which ends ({summarize_error(error)})."
        self.get_logger().fatal(self.loss)
        self._when_lost()
        try:
            self.say_lost()  # before the nodes that pass it on are closed
        finally:
            self._end_process()

    def _deactivate(self) -> None:
        self.is_active = False
        self.end()

    def _tear_down(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _accept(self, values: Any) -> None:
        if self._undo:  # configured: something is there that must follow
            self.change(values)

    def _attempt(
        self, transition: Callable[[], None], undo: Callable[[], None] = lambda: None
    ) -> TransitionCallbackReturn:
        try:
            transition()
        except Exception as error:
            if is_sticky(error):
                self.lose_device(error)
            if not isinstance(error, ConfigurationError):
                raise
            self._failure = error
            self.get_logger().error(str(error))
            undo()
            return TransitionCallbackReturn.FAILURE
        return TransitionCallbackReturn.SUCCESS


def open_trace(node: ManagedNode) -> TraceFile | None:
    """The file that the parameter ``trace`` names, until the node is cleaned up; None if it names none.

    Raises:
        ConfigurationError: it cannot be written.
    """
    if not node.values.trace:
        return None
    trace = TraceFile.open(Path(node.values.trace))
    node.on_tear_down(trace.close)
    return trace


def in_words(error: Exception) -> str:
    """An error as a sentence; of one that nobody expected also its type."""
    return str(error) if isinstance(error, SplitInferError) else f"{type(error).__name__}: {error}"
