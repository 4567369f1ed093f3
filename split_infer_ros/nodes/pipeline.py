"""All four nodes in one process, so that only handles travel."""

from __future__ import annotations

import sys

from split_infer_ros.nodes.backbone import BackboneNode
from split_infer_ros.nodes.camera import CameraNode
from split_infer_ros.nodes.head import HeadNode
from split_infer_ros.nodes.process import run
from split_infer_ros.nodes.stats import StatsNode

# whoever listens starts before whoever speaks
NODES = (StatsNode, HeadNode, BackboneNode, CameraNode)


def main() -> int:
    """Run the pipeline."""
    return run(NODES)


if __name__ == "__main__":
    sys.exit(main())
