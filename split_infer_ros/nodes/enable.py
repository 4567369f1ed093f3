"""The service by which a node is paused and goes on."""

from __future__ import annotations

from typing import Any

from rclpy.node import Node
from std_srvs.srv import SetBool


class Enable:
    """Offers ``~/enable``; while it is off nothing is given back, and frames are dropped as ``paused``.

    Args:
        node: that takes frames.

    Attributes:
        is_on: whether frames are taken.
    """

    def __init__(self, node: Node) -> None:
        self.is_on = True
        node.create_service(SetBool, "~/enable", self._set)

    def _set(self, request: Any, response: Any) -> Any:
        self.is_on = request.data
        response.success = True
        response.message = "Frames are taken." if request.data else "Frames are dropped as 'paused'."
        return response
