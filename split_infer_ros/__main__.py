"""`split_infer_ros COMMAND [ARGS]`: `ros2 run split_infer_ros COMMAND [ARGS]` for environments without ros2cli.

Without ROS, from a checkout: `python -m split_infer_ros cuts MODEL`.
"""

import importlib
import sys

NODES = ("backbone", "camera", "demo", "doctor", "head", "pipeline", "stats")
TOOLS = {"cuts": "split_infer_ros.split.cuts_tool"}  # these need no ROS
EXECUTABLES = {name: f"split_infer_ros.nodes.{name}" for name in NODES} | TOOLS


def main() -> int:
    """Run the executable named by the first argument with those after it; return its exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in EXECUTABLES:
        print(f"Usage: split_infer_ros COMMAND [ARGS]\nCommands: {', '.join(sorted(EXECUTABLES))}", file=sys.stderr)
        return 2
    del sys.argv[0]
    return int(importlib.import_module(EXECUTABLES[sys.argv[0]]).main() or 0)


if __name__ == "__main__":
    sys.exit(main())
