"""The ROS 2 nodes. Only the modules of this folder import ROS.

A node's callback converts a message, calls the rest of the package, and publishes the result.
"""

import os
import sys
from pathlib import Path

# Puts large tensors on large pages. Else every operation waits until the kernel has cleared thousands of small ones.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch reads it at its first allocation

# ROS 2 from PyPI's wheels has no setup file to source. Its prefix is the Python environment itself.
if "AMENT_PREFIX_PATH" not in os.environ and Path(sys.prefix, "share/ament_index").is_dir():
    os.environ["AMENT_PREFIX_PATH"] = sys.prefix
