"""`split_infer_ros COMMAND [ARGS]`: `ros2 run split_infer_ros COMMAND [ARGS]` for environments without ros2cli.

Without ROS, from a checkout: `python -m split_infer_ros split_points MODEL`.
"""

import importlib
import sys
from pathlib import Path


def executables() -> dict[str, str]:
    """The module of each executable, by its name: those in ``cli`` need no ROS, those in ``nodes`` do."""
    modules = Path(__file__).with_name("executables.txt").read_text().split()
    return {module.rpartition("/")[2]: f"split_infer_ros.{module.replace('/', '.')}" for module in modules}


def main() -> int:
    """Run the executable named by the first argument with those after it; return its exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in executables():
        print(f"Usage: split_infer_ros COMMAND [ARGS]\nCommands: {', '.join(executables())}", file=sys.stderr)
        return 2
    del sys.argv[0]
    return run(sys.argv[0])


def run(name: str) -> int:
    """Run an executable with the arguments of this process; return its exit code."""
    return int(importlib.import_module(executables()[name]).main() or 0)


if __name__ == "__main__":
    sys.exit(main())
