"""Publishes the latched topic ``vision_info``. It names a model and the parameter that lists the model's labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vision_msgs.msg import VisionInfo

from split_infer_ros.nodes.endpoints import LATCHED, create_publisher
from split_infer_ros.nodes.managed import ManagedNode

LABELS_PARAMETER = "class_labels"


class VisionInfoPublisher:
    """Publishes a model's name and labels once; late subscribers receive them too.

    Args:
        node: the node that publishes.
        model: the model's name.
        labels: the name of each label, by index.
        topic_prefix: text in front of the topic's name, such as ``front/``.
        parameter_prefix: text in front of the parameter's name, such as ``tenant.front.``.
    """

    def __init__(
        self,
        node: ManagedNode[Any],
        model: str,
        labels: Sequence[str],
        *,
        topic_prefix: str = "",
        parameter_prefix: str = "",
    ) -> None:
        self._node = node
        name = f"{parameter_prefix}{LABELS_PARAMETER}"
        node.table.set_status(name, list(labels), "The name of each label, by index.")
        self._publisher = create_publisher(node, VisionInfo, f"{topic_prefix}vision_info", LATCHED)
        info = VisionInfo(method=model, database_location=f"{node.get_fully_qualified_name()}/{name}")
        info.header.stamp = node.get_clock().now().to_msg()
        self._publisher.publish(info)

    def close(self) -> None:
        """Removes the publisher from the topic."""
        self._node.destroy_publisher(self._publisher)
