"""The Dockerfile, outside of Docker: it installs what the package needs, and its commands are well formed."""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from documentation import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
COMMANDS = re.findall(r"(?m)^RUN (.*)$", DOCKERFILE)
IN_ROS_BASE = {  # of Jazzy
    *("ament_cmake", "ament_index_python", "builtin_interfaces", "diagnostic_msgs", "geometry_msgs", "launch"),
    *("launch_ros", "lifecycle_msgs", "rcl_interfaces", "rclpy", "ros2launch", "rosidl_default_generators"),
    *("rosidl_default_runtime", "sensor_msgs", "std_msgs", "std_srvs"),
}
BY_PIP = {
    "python3-pytorch-pip": "torch",
    "python3-rosbags-pip": "rosbags",
    "python3-scipy": "scipy",
    "python3-sklearn": "scikit-learn",
}
BY_PIP |= {"python3-tqdm": "tqdm"}
IN_ROS_PYTHON = {"python3-numpy", "python3-yaml"}
ENTRY_POINT = '#!/bin/bash\nset -e\n\nsource "/opt/ros/$ROS_DISTRO/setup.bash" --\nexec "$@"\n'  # of ROS's images


def installed(command: str) -> set[str]:
    """Returns the packages that a command of the Dockerfile installs."""
    (words,) = [part.split() for each in COMMANDS for part in each.split("&&") if command in part]
    return {re.split("[<>=!]", word.strip('"'))[0] for word in words[words.index("install") + 1 :] if word[0] != "-"}


def test_all_dependencies_are_installed() -> None:
    apt, pip = installed("apt-get install"), installed("pip install")
    package = ElementTree.parse(ROOT / "package.xml").getroot()
    tags = ("depend", "exec_depend", "buildtool_depend")
    for name in {element.text for tag in tags for element in package.findall(tag)} - IN_ROS_BASE - IN_ROS_PYTHON:
        assert name is not None
        is_here = name in apt or f"ros-jazzy-{name.replace('_', '-')}" in apt or BY_PIP.get(name) in pip
        assert is_here, f"{name} of package.xml is not in the Dockerfile"


def test_all_engines_are_installed() -> None:
    engines = set(re.findall(r"\"(onnx\w*|openvino)\"", (ROOT / "setup.py").read_text()))
    assert {"onnx", "onnxruntime", "openvino"} <= engines <= installed("pip install")


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_well_formed(command: str) -> None:
    subprocess.run(["sh", "-n", "-c", command], check=True)


def test_entry_point_sources_the_workspace(tmp_path: Path) -> None:
    """The command that edits the image's entry point is run here, on a copy of that file."""
    (command,) = [each for each in COMMANDS if each.startswith("sed")]
    file = tmp_path / "ros_entrypoint.sh"
    file.write_text(ENTRY_POINT)
    subprocess.run(["sh", "-c", command.replace("/ros_entrypoint.sh", str(file))], check=True)
    lines = file.read_text().splitlines()
    assert lines[-2:] == ["source /ws/install/setup.bash", 'exec "$@"']
