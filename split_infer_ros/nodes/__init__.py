"""The ROS 2 nodes, and the only modules that import ROS. A callback converts, calls, publishes."""

import os
import sys
from pathlib import Path

# Large tensors on large pages: else every operation waits for the kernel to clear thousands of small ones.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch reads it when it first allocates

# ROS 2 from PyPI's wheels has no setup file to source: its prefix is the Python environment itself.
if "AMENT_PREFIX_PATH" not in os.environ and Path(sys.prefix, "share/ament_index").is_dir():
    os.environ["AMENT_PREFIX_PATH"] = sys.prefix
