"""Runs all nodes in one process, so that features need no copy. The nodes serve one model, or tenants."""

from __future__ import annotations

import sys

from rclpy.node import Node

from split_infer_ros.nodes.backbone import BackboneNode
from split_infer_ros.nodes.camera import CameraNode
from split_infer_ros.nodes.head import HeadNode
from split_infer_ros.nodes.parameters.tenants import TENANT, TENANTS
from split_infer_ros.nodes.process import NodeFactories, run
from split_infer_ros.nodes.stats import StatsNode
from split_infer_ros.nodes.tenants import TenantsNode

# subscribers become active before publishers
NODES = (StatsNode, HeadNode, BackboneNode, CameraNode)
TENANT_NODES = (StatsNode, TenantsNode, CameraNode)


def choose_nodes() -> NodeFactories:
    """Returns the types of the nodes that this process runs.

    These are ``TENANT_NODES`` if the process has start parameters of tenants. Else they are ``NODES``, for one model.
    """
    # ROS tells only a node which of the process's parameters are meant for it
    probe = Node("tenants", enable_rosout=False, start_parameter_services=False)
    overrides = probe._parameter_overrides
    probe.destroy_node()
    has_tenants = any(
        override.value for name, override in overrides.items() if name == TENANTS or name.startswith(f"{TENANT}.")
    )
    return TENANT_NODES if has_tenants else NODES


def main() -> int:
    """Runs a process with all nodes. Returns the exit code."""
    return run(choose_nodes)


if __name__ == "__main__":
    sys.exit(main())
