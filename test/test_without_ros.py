"""Everything but nodes/ is free of ROS, and imports run downwards only."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import split_infer_ros

PACKAGE = Path(split_infer_ros.__file__).parent
CHILD_S = 100  # a bound on the process that a test starts; the test's own bound lies above it

# From top to bottom: a package imports from itself and from those below it. (errors.py lies below all.)
PACKAGES = (
    "nodes",
    "cli",
    "autotuning",
    "tasks",
    "server",
    "weight_streaming",
    "operator_placement",
    "quantisation",
    "split",
    "engines",
    "preprocessing",
    "models",
    "onnx",
    "torch_graphs",
    "sources",
    "images",
    "point_clouds",
    "memory_cost",
    "vision_ops",
    "buffers",
    "search",
    "measurements",
    "telemetry",
    "runtime",
    "setting",
    "errors",
    "drop_reason",
)

ROS = ("rclpy", "ament_index_python", "rosidl_runtime_py", "builtin_interfaces", "rcl_interfaces", "launch_ros")

IMPORT_ALL = """
import importlib, sys

class NoRos:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {ros} or top.endswith(("_msgs", "_srvs")) or name == "split_infer_ros.msg":
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)

sys.meta_path.insert(0, NoRos())
try:
    import rclpy
except ModuleNotFoundError:
    pass
else:
    sys.exit("the block does not hold")
for module in {modules}:
    importlib.import_module(module)

import os, torch
threads = lambda: len(os.listdir("/proc/self/task"))
torch.set_num_threads(2)
before = threads()
torch.zeros(1_000_000)
print("helpers:", threads() - before)
"""


def files() -> list[Path]:
    """The package's own sources; what colcon adds when it installs messages is not ours."""
    return sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in ("msg", "srv"))


def package(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_name(path: Path) -> str:
    parts = ("split_infer_ros", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> list[str]:
    """Full names of the modules a file imports, wherever in it."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.fixture(scope="module")
def imported_all() -> subprocess.CompletedProcess[str]:
    """A process that imports everything but the nodes, then computes on two cores."""
    modules = [module_name(path) for path in files() if package(path) not in ("nodes", "__main__")]
    if importlib.util.find_spec("triton") is None:  # it comes with torch's builds for GPUs
        modules = [name for name in modules if not name.startswith("split_infer_ros.vision_ops.kernels.")]
    assert len(modules) > 25
    program = IMPORT_ALL.format(ros=set(ROS), modules=modules)
    return subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(PACKAGE.parent), "_ROS_WHEELS_BOOTSTRAP_COMPLETE": "1"},
        capture_output=True,
        text=True,
        timeout=CHILD_S,
        check=False,
    )


@pytest.mark.timeout(2 * CHILD_S)
def test_all_but_the_nodes_is_imported_without_ros(imported_all: subprocess.CompletedProcess[str]) -> None:
    assert imported_all.returncode == 0, imported_all.stderr


@pytest.mark.timeout(2 * CHILD_S)
def test_importing_leaves_the_main_thread_without_helpers(imported_all: subprocess.CompletedProcess[str]) -> None:
    assert imported_all.stdout == "helpers: 1\n", "a module computed on all cores as it was imported: see cores.py"


@pytest.mark.parametrize("path", files(), ids=module_name)
def test_imports_run_downwards(path: Path) -> None:
    if package(path) in ("__init__", "__main__"):
        return  # the front doors
    allowed = PACKAGES[PACKAGES.index(package(path)) :]
    for name in imported(path):
        if name.startswith("split_infer_ros."):
            target = name.split(".")[1]
            if target not in ("msg", "__version__"):
                assert target in allowed, f"{module_name(path)} reaches up to {name}"


def test_features_are_opaque_to_the_server() -> None:
    importing = {
        module_name(path)
        for path in files()
        if package(path) == "server" and any(name.partition(".")[0] == "torch" for name in imported(path))
    }
    assert importing == set(), "what torch computes belongs into a lower package"


def test_every_package_has_its_place() -> None:
    assert {package(path) for path in files()} - {"__init__", "__main__"} == set(PACKAGES)


def test_no_module_imports_itself_by_way_of_others() -> None:
    names = {module_name(path) for path in files()}
    imports = {
        module_name(path): {own for name in imported(path) if (own := own_module(name, names))} for path in files()
    }
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"These import each other: {' -> '.join(error.args[1])}")


def own_module(name: str, modules: set[str]) -> str | None:
    """The module of the package that an imported name is, or lies in; None if it is none of ours."""
    for candidate in (name, name.rpartition(".")[0]):
        if candidate in modules:
            return candidate
    return None
