"""``doctor``: one page that says what this machine has, and what to do about what is missing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from split_infer_ros.buffers.segment import FOLDER
from split_infer_ros.telemetry.checkup import Finding, Level, check_machine, format_findings, try_import

DETECTIONS_HASH = "RIHS01_214274120007f4a683866481336b70310268cfa107aebe9d594a6acf75bda968"  # upstream's
FAST_DDS = "rmw_fastrtps_cpp"
NEEDED = ("diagnostic_msgs", "geometry_msgs", "lifecycle_msgs", "rcl_interfaces", "sensor_msgs", "std_msgs", "std_srvs")
OLDEST_RCLPY_HAS = "add_pre_set_parameters_callback"  # and Humble's has not
SOURCE_ROS = "source /opt/ros/DISTRO/setup.bash, then the workspace's install/setup.bash; or use scripts/run."


def check_ros(environment: Mapping[str, str]) -> list[Finding]:
    """Where ROS comes from, and whether what the nodes need of it is there."""
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
    if not hasattr(getattr(try_import("rclpy.node"), "Node", None), OLDEST_RCLPY_HAS):
        advice = "take ROS 2 Jazzy or later; on Ubuntu 22.04 (JetPack 6 too) that means a container of it."
        findings.append(Finding(Level.PROBLEM, "rclpy", "too old to refuse parameters as a whole", advice))
    missing = [name for name in NEEDED if isinstance(try_import(name), ImportError)]
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
    """Ours or upstream's; on the wire both are the same, as the type's hash shows."""
    what = "vision_msgs"
    found = try_import("vision_msgs.msg")
    if isinstance(found, ImportError):
        advice = "apt install ros-$ROS_DISTRO-vision-msgs, or build interfaces/vision_msgs."
        return Finding(Level.PROBLEM, what, f"cannot be imported ({found})", advice)
    origin = "upstream's" if hasattr(found, "Detection3DArray") else "this project's own subset"
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
        advice = "other nodes will not understand the detections: use one vision_msgs of release 4 on all machines."
        return Finding(Level.PROBLEM, what, f"{origin}, with another Detection2DArray than release 4", advice)
    return Finding(Level.OK, what, f"{origin}, on the wire as release 4")


def check_middleware(environment: Mapping[str, str]) -> list[Finding]:
    """The RMW in use and, of Fast DDS, its profile."""
    from rclpy.utilities import get_rmw_implementation_identifier

    try:
        name = get_rmw_implementation_identifier()
    except Exception as error:  # the library that RMW_IMPLEMENTATION names is missing or broken
        asked = environment.get("RMW_IMPLEMENTATION", "the default")
        return [Finding(Level.PROBLEM, "Middleware", f"{asked} does not load ({error})", "unset RMW_IMPLEMENTATION.")]
    findings = [Finding(Level.OK, "Middleware", name)]
    if name != FAST_DDS:
        advice = f"large images are only tuned for {FAST_DDS}; configure shared memory for {name} as its manual says."
        return [*findings, Finding(Level.NOTE, "Fast DDS profile", "not used by this middleware", advice)]
    from split_infer_ros.nodes.process import PROFILE_VARIABLES, shipped_profile

    for variable in PROFILE_VARIABLES:
        if variable in environment:
            path = environment[variable]
            if not Path(path).is_file():
                advice = "Fast DDS ignores it and splits images into pieces; correct or unset the variable."
                return [
                    *findings,
                    Finding(Level.NOTE, "Fast DDS profile", f"{path} ({variable}) does not exist", advice),
                ]
            return [*findings, Finding(Level.OK, "Fast DDS profile", f"{path} ({variable})")]
    profile = shipped_profile()
    if profile is None:
        advice = "install the package whole: config/fastdds.xml is missing, and large images will be slow."
        return [*findings, Finding(Level.NOTE, "Fast DDS profile", "none", advice)]
    return [
        *findings,
        Finding(
            Level.OK,
            "Fast DDS profile",
            f"{profile} (this package's nodes use it by themselves; "
            f"for other nodes that send large images: export {PROFILE_VARIABLES[0]}={profile})",
        ),
    ]


def check_optional() -> list[Finding]:
    """Libraries of less weight, and what only some uses need."""
    findings = []
    cv_bridge = try_import("cv_bridge")
    found = "not installed" if isinstance(cv_bridge, ImportError) else "installed"
    findings.append(Finding(Level.OK, "cv_bridge", f"{found}, and not needed: images are read without it"))
    for name, package, use, needed in (
        ("cv2", "opencv-python-headless", "reads and converts images", True),
        ("safetensors", "safetensors", "reads weights; rosdep does not know it", True),
        ("rosbags", "rosbags", "source:=bag:PATH", False),
    ):
        found_module = try_import(name)
        if isinstance(found_module, ImportError):
            advice = f"pip install {package} ({use})."
            level = Level.PROBLEM if needed else Level.NOTE
            findings.append(Finding(level, name, f"cannot be imported ({found_module})", advice))
        else:
            findings.append(Finding(Level.OK, name, str(getattr(found_module, "__version__", "installed"))))
    return findings


def main() -> int:
    """Print the page; returns 1 if something is missing that the pipeline cannot run without."""
    findings = [*check_ros(os.environ), *check_machine(FOLDER), *check_optional()]
    print(format_findings(findings))
    return int(any(finding.level == Level.PROBLEM for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
