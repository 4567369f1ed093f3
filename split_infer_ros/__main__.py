"""`split_infer_ros COMMAND [ARGS]`: `ros2 run split_infer_ros COMMAND [ARGS]` for environments without ros2cli.

Without ROS, from a checkout: `python -m split_infer_ros split_points MODEL`.
"""

import os
import sys

from split_infer_ros.runtime.search_path import drop_working_folder

if __name__ == "__main__":
    drop_working_folder(os.getcwd())  # before other imports, because ``python -m`` puts this folder in the search path

import importlib
import io
from pathlib import Path

from split_infer_ros.runtime.home import ensure_home
from split_infer_ros.runtime.process import keep_freed_memory
from split_infer_ros.split.sandbox.early_inspector import start_early

PACKAGE = "split_infer_ros"
ROS = ("rclpy", "ament_index_python", "builtin_interfaces", "rcl_interfaces")
INSTALLED_AS = {"cv2": "opencv-python-headless", "yaml": "pyyaml", "sklearn": "scikit-learn"}


def executables() -> dict[str, str]:
    """Returns the full name of the module of each executable, by the executable's name.

    Modules in ``nodes`` need ROS, modules in ``cli`` do not.
    """
    modules = Path(__file__).with_name("executables.txt").read_text().split()
    return {module.rpartition("/")[2]: f"{PACKAGE}.{module.replace('/', '.')}" for module in modules}


def main() -> int:
    """Runs the executable that the first argument names, with the arguments after it. Returns its exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in executables():
        print(f"Usage: split_infer_ros COMMAND [ARGS]\nCommands: {', '.join(executables())}", file=sys.stderr)
        return 2
    del sys.argv[0]
    return run(sys.argv[0])


def run(name: str) -> int:
    """Runs an executable with the arguments of this process. Returns its exit code."""
    keep_freed_memory()  # before ROS is imported, which starts threads: a thread keeps the heap that it has by then
    ensure_home()
    start_early(sys.argv[1:])
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # like stderr, so that any file's name can be printed
    try:
        module = importlib.import_module(executables()[name])
    except ModuleNotFoundError as error:
        advice = _advice(error.name or "")
        if not advice:
            raise
        print(f"error: {name} needs the Python package {error.name}, which is not there: {advice}.", file=sys.stderr)
        return 1
    return int(module.main() or 0)


def _advice(missing: str) -> str:
    """Returns how to install a missing module; empty for this package's own modules, as their absence is a fault."""
    top = missing.partition(".")[0]
    if missing == f"{PACKAGE}.msg":
        return "build the package (colcon build, or scripts/run once), then source its setup file"
    if top == PACKAGE or not top:
        return ""
    if top in ROS or top.endswith(("_msgs", "_srvs")):
        return "source /opt/ros/DISTRO/setup.bash, or use scripts/run"
    return f"pip install {'torch torchvision' if top in ('torch', 'torchvision') else INSTALLED_AS.get(top, top)}"


if __name__ == "__main__":
    sys.exit(main())
