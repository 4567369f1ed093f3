"""All nodes in one process, so that only handles travel: one model's, or the tenants'."""

from __future__ import annotations

import sys

from rclpy.node import Node

from split_infer_ros.nodes.backbone import BackboneNode
from split_infer_ros.nodes.camera import CameraNode
from split_infer_ros.nodes.head import HeadNode
from split_infer_ros.nodes.parameters.tenants import TENANTS
from split_infer_ros.nodes.process import Makers, run
from split_infer_ros.nodes.stats import StatsNode
from split_infer_ros.nodes.tenants import TenantsNode

# whoever listens starts before whoever speaks
NODES = (StatsNode, HeadNode, BackboneNode, CameraNode)
NODES_OF_TENANTS = (StatsNode, TenantsNode, CameraNode)


def choose() -> Makers:
    """Those for tenants, if the process was started with any."""
    # only a node can tell which parameters are meant for it
    probe = Node("tenants", enable_rosout=False, start_parameter_services=False)
    given = probe._parameter_overrides
    probe.destroy_node()
    asked = any(value.value for name, value in given.items() if name == TENANTS or name.startswith(f"{TENANTS}."))
    return NODES_OF_TENANTS if asked else NODES


def main() -> int:
    """Run the pipeline."""
    return run(choose)


if __name__ == "__main__":
    sys.exit(main())
