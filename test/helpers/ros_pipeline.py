"""Nodes under test that run in this process."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from rclpy.context import Context
from rclpy.node import Node
from rclpy.parameter import Parameter
from ros_support import START_S, Client, SpinningExecutor, wait_until

from split_infer_ros.nodes.backbone import BackboneNode
from split_infer_ros.nodes.camera import CameraNode
from split_infer_ros.nodes.head import HeadNode
from split_infer_ros.nodes.intra_process import COUNT_PERIOD_S
from split_infer_ros.nodes.managed import ManagedNode, start_nodes
from split_infer_ros.nodes.stats import StatsNode
from split_infer_ros.nodes.tenants import TenantsNode
from split_infer_ros.nodes.transports.network import NetworkConnection
from split_infer_ros.server.ledger import LedgerCounts

NODE_TYPES: dict[str, Callable[..., ManagedNode[Any]]] = {
    "stats": StatsNode,
    "head": HeadNode,
    "backbone": BackboneNode,
    "tenants": TenantsNode,
    "camera": CameraNode,
}

_numbers = itertools.count()


def wait_for_match(node: Node, topic: str, count: int = 1) -> None:
    """Waits until ``count`` subscriptions match a node's publisher, and ``IntraProcessPublisher`` has counted them."""
    name = node.resolve_topic_name(topic)
    wait_until(
        lambda: {each.get_subscription_count() for each in node.publishers if each.topic_name == name} == {count},
        f"{count} subscriptions of {topic}",
    )
    time.sleep(1.1 * COUNT_PERIOD_S)  # it counts them again only then


class Pipeline:
    """Nodes of this process with their own executor and namespace, and a client.

    Args:
        context: the ROS context.
        parameters: the parameters of each node that runs, by a name of ``NODE_TYPES``. By default, ``weights`` is
            ``none`` and ``engine`` is ``torch``.

    Attributes:
        namespace: the namespace of the nodes.
        client: the client.
        nodes: the nodes, by name; see ``add``.
    """

    def __init__(self, context: Context, **parameters: Mapping[str, Any]) -> None:
        self.namespace = f"/n{next(_numbers)}"
        self.client = Client(context, self.namespace)
        self.nodes: dict[str, ManagedNode] = {}
        self._spinning = SpinningExecutor(context, "nodes")
        try:
            for name in NODE_TYPES:
                if name in parameters:
                    self.add(name, **parameters[name])
            if "head" in parameters and parameters.get("backbone", {}).get("transport") == "network":
                self._wait_for_head()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, name: str, within: str = "", **values: Any) -> ManagedNode:
        """Starts a node, and returns it. ``nodes`` then has it as ``NAME``, or as ``WITHIN/NAME``.

        Args:
            name: the kind of node, a name of ``NODE_TYPES``.
            within: a namespace of the node inside that of the pipeline; empty for none.
            values: the parameters of the node.
        """
        namespace = f"{self.namespace}/{within}" if within else self.namespace
        if name in ("backbone", "head"):
            # engine auto would compare engines during each test
            values = {"weights": "none", "engine": "torch", **values}
        if name == "tenants":
            values = {"improve": "never", **values}
        if name == "head":  # deep enough that no message is overwritten before a client takes it
            values = {f"qos_overrides.{namespace}/detections.publisher.depth": 1000, **values}
        for tenant in values.get("tenants", ()) if name == "tenants" else ():
            values = {f"qos_overrides.{self.namespace}/{tenant}/detections.publisher.depth": 1000, **values}
        node = NODE_TYPES[name](
            context=self.client.node.context,
            namespace=namespace,
            use_global_arguments=False,
            parameter_overrides=[Parameter(key, value=value) for key, value in values.items()],
        )
        self.nodes[f"{within}/{name}".lstrip("/")] = node
        self._spinning.executor.add_node(node)
        start_nodes([node])
        return node

    def _wait_for_head(self) -> None:
        """Waits for a chosen head whose topic DDS has matched. Frames that come earlier are lost."""
        connection = self.backbone.stage.instance.connection
        assert isinstance(connection, NetworkConnection)
        wait_until(lambda: connection.sender.heads_reached, "a head", START_S)

    def remove(self, name: str) -> None:
        """Closes a node."""
        node = self.nodes.pop(name)
        self._spinning.executor.remove_node(node)
        node.close()

    def close(self) -> None:
        """Closes all nodes and the client."""
        self._spinning.stop()
        for node in reversed(self.nodes.values()):
            node.close()
        self.client.close()

    @property
    def backbone(self) -> BackboneNode:
        """The node ``backbone``."""
        node = self.nodes["backbone"]
        assert isinstance(node, BackboneNode)
        return node

    @property
    def counts(self) -> LedgerCounts:
        """The counts of the backbone's ledger now. Asserts that they are balanced."""
        counts = self.backbone.stage.ledger.counts()
        assert counts.balanced, counts
        return counts

    def settled(self, received: int) -> LedgerCounts:
        """Waits until ``received`` frames have come and none is in flight. Returns the counts."""
        wait_until(
            lambda: self.counts.received >= received and not self.counts.in_flight,
            lambda: f"{received} frames settled: {self.counts}",
            START_S,
        )
        return self.counts
