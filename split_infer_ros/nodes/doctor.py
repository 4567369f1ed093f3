"""The command ``doctor``: prints what this machine has, and what to do about what is missing."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from split_infer_ros.buffers.segment import FOLDER
from split_infer_ros.runtime.user_files import is_regular
from split_infer_ros.telemetry.checkup import Finding, Level, check_machine, format_findings, try_import
from split_infer_ros.weight_streaming.packed_header import packed_folder
from split_infer_ros.weight_streaming.storage_checkup import check_storage

# the hash of Detection2DArray in upstream's vision_msgs
DETECTIONS_HASH = "RIHS01_214274120007f4a683866481336b70310268cfa107aebe9d594a6acf75bda968"
FAST_DDS = "rmw_fastrtps_cpp"
REQUIRED_PACKAGES = (
    "diagnostic_msgs",
    "geometry_msgs",
    "lifecycle_msgs",
    "rcl_interfaces",
    "sensor_msgs",
    "std_msgs",
    "std_srvs",
)
REQUIRED_RCLPY_METHOD = "add_pre_set_parameters_callback"  # Humble lacks it
SOURCE_ROS = "source /opt/ros/DISTRO/setup.bash, then the workspace's install/setup.bash; or use scripts/run."


def check_ros(environment: Mapping[str, str]) -> list[Finding]:
    """Checks where ROS comes from, and whether it has what the nodes need.

    Args:
        environment: the environment variables of the process.
    """
    rclpy = try_import("rclpy")
    if isinstance(rclpy, ImportError):
        return [Finding(Level.PROBLEM, "ROS 2", f"rclpy cannot be imported ({rclpy})", SOURCE_ROS)]
    distribution = environment.get("ROS_DISTRO")
    origin = f"{distribution}, sourced" if distribution else "the wheels of this Python environment"
    folder = Path(str(rclpy.__file__)).parent
    findings = [
        Finding(Level.OK, "ROS 2", f"{origin} ({folder})"),
        Finding(Level.OK, "ROS domain", environment.get("ROS_DOMAIN_ID", "0 (the default)")),
    ]
    if not hasattr(getattr(try_import("rclpy.node"), "Node", None), REQUIRED_RCLPY_METHOD):
        advice = "use ROS 2 Jazzy or later; on Ubuntu 22.04 (and JetPack 6) in a container."
        findings.append(
            Finding(Level.PROBLEM, "rclpy", "too old: it cannot refuse several parameters as a whole", advice)
        )
    missing = [name for name in REQUIRED_PACKAGES if isinstance(try_import(name), ImportError)]
    if missing:
        packages = " ".join(f"ros-$ROS_DISTRO-{name.replace('_', '-')}" for name in missing)
        findings.append(
            Finding(Level.PROBLEM, "ROS packages", f"missing: {', '.join(missing)}", f"apt install {packages}.")
        )
    messages = try_import("split_infer_ros.msg")
    if isinstance(messages, ImportError):
        advice = "build the package (colcon build, or scripts/run once), then source its setup file."
        findings.append(Finding(Level.PROBLEM, "Our messages", f"cannot be imported ({messages})", advice))
    findings.append(check_vision_msgs(environment.get("AMENT_PREFIX_PATH", "")))
    findings += check_middleware(environment)
    return findings


def check_vision_msgs(prefixes: str) -> Finding:
    """Checks that the installed vision_msgs has the type hash of release 4, so that other nodes understand detections.

    The package may be upstream's, or this project's own subset of it.

    Args:
        prefixes: the value of AMENT_PREFIX_PATH: folders with installed packages, separated by colons.
    """
    what = "vision_msgs"
    found = try_import("vision_msgs.msg")
    if isinstance(found, ImportError):
        advice = "apt install ros-$ROS_DISTRO-vision-msgs, or build interfaces/vision_msgs."
        return Finding(Level.PROBLEM, what, f"cannot be imported ({found})", advice)
    origin = "upstream's" if hasattr(found, "Classification") else "this project's own subset"
    description = next(
        (
            path
            for prefix in filter(None, prefixes.split(os.pathsep))
            if (path := Path(prefix, "share/vision_msgs/msg/Detection2DArray.json")).is_file()
        ),
        None,
    )
    if description is None:
        return Finding(Level.NOTE, what, f"{origin}; its type description is not installed, so it cannot be compared")
    hashes = {entry["type_name"]: entry["hash_string"] for entry in json.loads(description.read_text())["type_hashes"]}
    if hashes.get("vision_msgs/msg/Detection2DArray") != DETECTIONS_HASH:
        advice = "other nodes will not understand the detections: use vision_msgs of release 4 on all machines."
        return Finding(Level.PROBLEM, what, f"{origin}, whose Detection2DArray differs from release 4", advice)
    return Finding(Level.OK, what, f"{origin}, compatible with release 4")


def check_middleware(environment: Mapping[str, str]) -> list[Finding]:
    """Checks which ROS middleware (RMW) is used, and which profile if it is Fast DDS.

    Args:
        environment: the environment variables of the process.
    """
    from rclpy.utilities import get_rmw_implementation_identifier

    try:
        name = get_rmw_implementation_identifier()
    except Exception as error:  # the library that RMW_IMPLEMENTATION names is missing or broken
        requested = environment.get("RMW_IMPLEMENTATION", "the default")
        return [
            Finding(Level.PROBLEM, "Middleware", f"{requested} does not load ({error})", "unset RMW_IMPLEMENTATION.")
        ]
    return [Finding(Level.OK, "Middleware", name), _profile_finding(name, environment)]


def _profile_finding(middleware: str, environment: Mapping[str, str]) -> Finding:
    """Says which profile of Fast DDS the nodes use, and what large images need if it is not this package's."""
    from split_infer_ros.nodes.process import PROFILE_VARIABLES, TRANSPORTS_VARIABLE, shipped_profile

    what = "Fast DDS profile"
    if middleware != FAST_DDS:
        advice = (
            f"only {FAST_DDS} is tuned for large images; configure shared memory for {middleware} as its manual says."
        )
        return Finding(Level.NOTE, what, "not used by this middleware", advice)
    transports = environment.get(TRANSPORTS_VARIABLE)
    for variable in PROFILE_VARIABLES:
        if variable in environment:
            path = environment[variable]
            if not is_regular(Path(path)):
                advice = "Fast DDS ignores it and splits images into pieces; correct or unset the variable."
                return Finding(Level.NOTE, what, f"{path} ({variable}) does not exist", advice)
            if transports is not None:
                advice = f"a profile that names transports counts more than {TRANSPORTS_VARIABLE}={transports}."
                return Finding(Level.NOTE, what, f"{path} ({variable})", advice)
            return Finding(Level.OK, what, f"{path} ({variable})")
    if transports is not None:
        advice = "large images travel in pieces, of which some get lost; unset the variable unless you need it."
        found = f"none, because {TRANSPORTS_VARIABLE}={transports} names the transports"
        return Finding(Level.NOTE, what, found, advice)
    profile = shipped_profile()
    if profile is None:
        advice = "reinstall the package: config/fastdds.xml is missing, and large images will be slow."
        return Finding(Level.NOTE, what, "none", advice)
    return Finding(
        Level.OK,
        what,
        f"{profile} (this package's nodes use it automatically; "
        f"for other nodes that send large images: export {PROFILE_VARIABLES[0]}={profile})",
    )


def list_engines() -> list[Finding]:
    """Lists the engines' providers and devices, and the precisions in which they compute on this processor.

    Returns:
        The findings. They are empty if torch is missing: another check reports that.
    """
    try:
        from split_infer_ros.engines.precision_checkup import check_precisions
        from split_infer_ros.engines.provider_checkup import check_providers
    except ImportError:
        return []
    return [*check_providers(), *check_precisions()]


def check_optional() -> list[Finding]:
    """Checks small libraries that are required, and libraries that only some uses need."""
    findings = []
    cv_bridge = try_import("cv_bridge")
    found = "not installed" if isinstance(cv_bridge, ImportError) else "installed"
    findings.append(Finding(Level.OK, "cv_bridge", f"{found}, not needed: images are read without it"))
    for name, package, use, is_required in (
        ("cv2", "opencv-python-headless", "reads and converts images", True),
        ("safetensors", "safetensors", "reads weights; rosdep does not know it", True),
        ("rosbags", "rosbags", "source:=bag:PATH", False),
    ):
        found_module = try_import(name)
        if isinstance(found_module, ImportError):
            advice = f"pip install {package} ({use})."
            level = Level.PROBLEM if is_required else Level.NOTE
            findings.append(Finding(level, name, f"cannot be imported ({found_module})", advice))
        else:
            findings.append(Finding(Level.OK, name, str(getattr(found_module, "__version__", "installed"))))
    return findings


def main() -> int:
    """Prints the findings. Returns 1 if something is missing that the pipeline needs, else 0."""
    argparse.ArgumentParser(prog="doctor", description=__doc__).parse_args()  # the command takes no arguments
    findings = [*check_ros(os.environ), *check_machine(FOLDER), *list_engines(), *check_optional()]
    findings.append(check_storage(packed_folder()))
    print(format_findings(findings))
    return int(any(finding.level == Level.PROBLEM for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
