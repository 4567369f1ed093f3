"""`split_infer_ros COMMAND [ARGS]`: `ros2 run split_infer_ros COMMAND [ARGS]` for environments without ros2cli.

Without ROS, from a checkout: `python -m split_infer_ros cuts MODEL`.
"""

import importlib
import sys

NODES = ("backbone", "camera", "demo", "doctor", "head", "pipeline", "stats")
COMMANDS = ("calibrate", "cuts", "pack", "place", "profile", "tune")  # these need no ROS


def main() -> int:
    """Run the executable named by the first argument with those after it; return its exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in NODES + COMMANDS:
        names = ", ".join(sorted(NODES + COMMANDS))
        print(f"Usage: split_infer_ros COMMAND [ARGS]\nCommands: {names}", file=sys.stderr)
        return 2
    del sys.argv[0]
    return run(sys.argv[0])


def run(name: str) -> int:
    """Run an executable with the arguments of this process; return its exit code."""
    room = "commands" if name in COMMANDS else "nodes"
    module = importlib.import_module(f"split_infer_ros.{room}.{name}")
    return int(module.main() or 0)


if __name__ == "__main__":
    sys.exit(main())
