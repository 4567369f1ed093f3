"""The command ``doctor`` describes this machine, and its exit code tells whether the pipeline can run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import rclpy

from split_infer_ros.nodes import doctor
from split_infer_ros.telemetry.checkup import Finding, Level


def test_doctor_approves_this_machine() -> None:
    result = subprocess.run([sys.executable, "-m", "split_infer_ros.nodes.doctor"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    shown = ("ROS 2", "vision_msgs", "Middleware", "Fast DDS profile", "torch", "Shared memory", "cv_bridge", "Storage")
    engines = ("torch", "onnxruntime", "openvino")
    precisions = [f"Precisions of {name} on the CPU: fp32" for name in engines if importlib.util.find_spec(name)]
    for what in (*shown, "Instruction sets", *precisions):
        assert f"  {what}" in result.stdout
    assert result.stdout.endswith("The pipeline can run.\n")


def test_doctor_without_ros_fails_with_advice(tmp_path: Path) -> None:
    """The command needs no ROS, because users without ROS need it most."""
    (tmp_path / "rclpy.py").write_text("raise ImportError('librcl.so: cannot open shared object file')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-m", "split_infer_ros.nodes.doctor"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "PROBLEM   ROS 2: rclpy cannot be imported (librcl.so" in result.stdout
    assert "Traceback" not in result.stderr


def find(findings: list[Finding], what: str) -> Finding:
    return next(finding for finding in findings if finding.what == what)


def test_vision_msgs_is_checked_by_its_hash(tmp_path: Path) -> None:
    prefixes = os.environ["AMENT_PREFIX_PATH"]
    assert doctor.check_vision_msgs(prefixes).level == Level.OK
    assert doctor.check_vision_msgs("").level == Level.NOTE
    folder = tmp_path / "share/vision_msgs/msg"
    folder.mkdir(parents=True)
    (folder / "Detection2DArray.json").write_text(
        '{"type_hashes": [{"type_name": "vision_msgs/msg/Detection2DArray", "hash_string": "RIHS01_0"}]}'
    )
    assert doctor.check_vision_msgs(str(tmp_path)).level == Level.PROBLEM


def test_profile_in_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = tmp_path / "mine.xml"
    profile.write_text("")
    environment = {"FASTRTPS_DEFAULT_PROFILES_FILE": str(profile)}
    finding = find(doctor.check_middleware(environment), "Fast DDS profile")
    assert (finding.level, str(profile) in finding.found) == (Level.OK, True)
    profile.unlink()
    finding = find(doctor.check_middleware(environment), "Fast DDS profile")
    assert (finding.level, "does not exist" in finding.found) == (Level.NOTE, True)


def test_transports_that_the_user_names_are_told(tmp_path: Path) -> None:
    environment = {"FASTDDS_BUILTIN_TRANSPORTS": "UDPv4"}
    finding = find(doctor.check_middleware(environment), "Fast DDS profile")
    assert (finding.level, "FASTDDS_BUILTIN_TRANSPORTS=UDPv4" in finding.found) == (Level.NOTE, True)
    profile = tmp_path / "mine.xml"
    profile.write_text("")
    finding = find(
        doctor.check_middleware({**environment, "FASTDDS_DEFAULT_PROFILES_FILE": str(profile)}), "Fast DDS profile"
    )
    assert (finding.level, "counts more than FASTDDS_BUILTIN_TRANSPORTS=UDPv4" in finding.advice) == (Level.NOTE, True)


def test_missing_ros_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    try_import = doctor.try_import
    monkeypatch.setattr(doctor, "try_import", lambda name: ImportError() if name == "std_srvs" else try_import(name))
    finding = find(doctor.check_ros(os.environ), "ROS packages")
    assert finding.level == Level.PROBLEM
    assert "ros-$ROS_DISTRO-std-srvs" in finding.advice


def test_too_old_rclpy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(rclpy.node.Node, doctor.REQUIRED_RCLPY_METHOD)
    finding = find(doctor.check_ros(os.environ), "rclpy")
    assert finding.level == Level.PROBLEM
    assert "Jazzy" in finding.advice


@pytest.mark.parametrize(
    ("name", "level"), [("cv2", Level.PROBLEM), ("safetensors", Level.PROBLEM), ("rosbags", Level.NOTE)]
)
def test_missing_library_is_named_with_its_package(name: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    try_import = doctor.try_import
    monkeypatch.setattr(doctor, "try_import", lambda asked: ImportError() if asked == name else try_import(asked))
    finding = find(doctor.check_optional(), name)
    assert finding.level == level
    assert finding.advice.startswith("pip install ")
