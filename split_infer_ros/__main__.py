"""`split_infer_ros COMMAND [ARGS]`: `ros2 run split_infer_ros COMMAND [ARGS]` for environments without ros2cli."""

import importlib
import sys

EXECUTABLES = ("backbone", "camera", "demo", "doctor", "head", "pipeline", "stats")


def main() -> int:
    """Run the executable named by the first argument with those after it; return its exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in EXECUTABLES:
        print(f"Usage: split_infer_ros COMMAND [ARGS]\nCommands: {', '.join(EXECUTABLES)}", file=sys.stderr)
        return 2
    del sys.argv[0]
    module = importlib.import_module(f"split_infer_ros.nodes.{sys.argv[0]}")
    return int(module.main() or 0)


if __name__ == "__main__":
    sys.exit(main())
