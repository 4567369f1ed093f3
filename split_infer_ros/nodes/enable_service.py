"""The service that pauses and resumes a node."""

from __future__ import annotations

from typing import Any

from rclpy.node import Node
from std_srvs.srv import SetBool


class EnableService:
    """Offers the service ``~/enable``. A disabled node keeps its memory and drops frames as ``paused``.

    Args:
        node: the node that offers the service.

    Attributes:
        enabled: whether the node serves frames. If not, it should drop them.
    """

    def __init__(self, node: Node) -> None:
        self.enabled = True
        node.create_service(SetBool, "~/enable", self._set)

    def _set(self, request: Any, response: Any) -> Any:
        self.enabled = request.data
        response.success = True
        response.message = "Frames are taken." if request.data else "Frames are dropped as 'paused'."
        return response
