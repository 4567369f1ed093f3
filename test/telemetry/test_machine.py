import json
import os

import pytest
import torch

from split_infer_ros.telemetry.machine import (
    cpu_name,
    describe_machine,
    gpu_driver,
    gpu_name,
    ros_version,
    torch_versions,
)


def test_the_machine_is_described_in_plain_values():
    facts = describe_machine()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["cpu"]
    assert 1 <= facts["cores"] <= os.cpu_count()
    assert facts["memory_bytes"] > 2**27
    assert set(facts["versions"]) == {"python", "torch", "cuda", "ros"}


def test_cores_are_those_that_this_process_may_use():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert describe_machine()["cores"] == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("cpuinfo", "board", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC\n\nprocessor\t: 1\nmodel name\t: other\n", None, "AMD EPYC"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", "NVIDIA Jetson AGX Orin\0", "NVIDIA Jetson AGX Orin"),
    ],
)
def test_the_processor_has_a_name(tmp_path, cpuinfo, board, name):
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    if board:
        (tmp_path / "model").write_text(board)
    assert cpu_name(tmp_path / "cpuinfo", tmp_path / "model") == name


def test_a_processor_without_files_still_has_a_name(tmp_path):
    assert cpu_name(tmp_path / "none", tmp_path / "none")


def test_the_sourced_ros_comes_first(monkeypatch):
    monkeypatch.setenv("ROS_DISTRO", "kilted")
    assert ros_version() == "kilted"


def test_the_driver_has_a_version(tmp_path):
    file = tmp_path / "version"
    assert gpu_driver(file) is None
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root)\n")
    assert gpu_driver(file) == "580.65.06"
    file.write_text("something else\n")
    assert gpu_driver(file) is None


def test_a_cpu_has_no_gpus_name_and_no_cuda():
    assert gpu_name("cpu") is None
    assert torch_versions("cpu") == {"torch": torch.__version__, "cuda": None}
