"""Publishes the head's status on ``/diagnostics``."""

from __future__ import annotations

from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.qos import QoSProfile
from std_msgs.msg import Header

from split_infer_ros.nodes.endpoints import create_publisher
from split_infer_ros.nodes.health import LEFT_OUT, weights_values
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.server.head_stage import HeadStage


class HeadDiagnostics:
    """Publishes how many handles the head refused, how many detections it left out, and why.

    The status is a warning while either count grows.

    Args:
        node: the head's node, with the parameters ``model``, ``transport`` and ``weights_residency``.
        stage: the head's stage. It counts what is refused or left out.
    """

    def __init__(self, node: ManagedNode[Any], stage: HeadStage) -> None:
        self._node = node
        self._stage = stage
        self._refused_before = 0
        self._left_out_before = 0
        self._publisher = create_publisher(node, DiagnosticArray, "/diagnostics", QoSProfile(depth=10))

    def publish(self, is_standby: bool) -> None:
        """Publishes the head's status.

        Args:
            is_standby: whether this head stands by because another one takes the batches.
        """
        refused, left_out = dict(self._stage.refused), dict(self._stage.left_out)
        status = DiagnosticStatus(name=self._node.get_fully_qualified_name().lstrip("/"))
        status.level, status.message = self._diagnose(sum(refused.values()), sum(left_out.values()), is_standby)
        values = self._values()
        values |= {f"refused: {reason}": str(count) for reason, count in sorted(refused.items())}
        values |= {f"left out: {reason}": str(count) for reason, count in sorted(left_out.items())}
        status.values = [KeyValue(key=key, value=value) for key, value in values.items()]
        header = Header(stamp=self._node.get_clock().now().to_msg())
        self._publisher.publish(DiagnosticArray(header=header, status=[status]))

    def close(self) -> None:
        """Removes the publisher from the topic."""
        self._node.destroy_publisher(self._publisher)

    def _diagnose(self, refused: int, left_out: int, is_standby: bool) -> tuple[bytes, str]:
        refused_before, left_out_before = self._refused_before, self._left_out_before
        self._refused_before, self._left_out_before = refused, left_out
        if refused > refused_before:
            return (
                DiagnosticStatus.WARN,
                "Handles were refused: their slots do not exist, or hold what this head cannot read.",
            )
        if left_out > left_out_before:
            return DiagnosticStatus.WARN, LEFT_OUT
        fault = self._stage.cores.fault  # asks the system
        if fault:
            return DiagnosticStatus.WARN, fault
        if is_standby:
            message = "It stands by: another head takes the batches. It takes over when that one ends."
            return DiagnosticStatus.OK, message
        return DiagnosticStatus.OK, "It takes handles as they come."

    def _values(self) -> dict[str, str]:
        parameters = self._node.values
        values = {"model": parameters.model.name, "transport": parameters.transport}
        weights = self._stage.weights
        if weights is not None:
            values |= weights_values(
                residency=parameters.weights.weights_residency.value,
                memory_bytes=weights.memory_bytes,
                read_mb_s=weights.bandwidth / 1e6,
                stalled_s=weights.stalled_s,
            )
        return values
